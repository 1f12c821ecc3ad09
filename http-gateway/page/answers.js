/* ---- what the server answers ---- */

const PICTURE_CHARACTERS = 1000; // 256 tokens is what Gemma 3 reads of one

function headers() {
  const h = {"Content-Type": "application/json"};
  if ($("key").value)
    h.Authorization = "Bearer " + $("key").value;
  return h;
}

async function failure(response) {
  try {
    const {error} = await response.json();
    return {status: response.status, ...(typeof error === "string" ? {message: error} : error)}; // Ollama's is a text
  } catch {
    return {status: response.status, message: "the server answered " + response.status};
  }
}

// In the words of the page: the server's own speak to programs.
function explain(problem) {
  if (problem instanceof TypeError) // fetch() says no more
    return "No connection to the server. Is tandem-http running?";
  if (problem.status === 401)
    return $("key").value ? "The server does not know this API key." :
                            "The server needs an API key. Enter it above, at API key.";
  if (problem.code === "no_daemon")
    return "Tandem's daemon does not run, or does not answer.";
  if (problem.code === "context_length_exceeded")
    return "This message alone is too long for the model: " + problem.message;
  if (String(problem.message || "").includes("send the prompt raw"))
    return "This model cannot chat: " + problem.message.split(";")[0] + ". Choose another one above.";
  return String(problem.message || problem);
}

// Server-sent events: one JSON object each, until [DONE]. A comment may tell that a worker was lost.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done)
      return;
    rest += value;
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines)
      if (line.startsWith("data: ") && line !== "data: [DONE]")
        yield JSON.parse(line.slice(6));
      else if (line === ": recovering")
        yield {recovering: true};
  }
}

// Pictures stand in front of the text that is about them.
function questionOf(turn) {
  const pictures = picturesOf(turn).filter(p => p.url).map(p => ({type: "image_url", image_url: {url: p.url}}));
  const text = turn.user || !pictures.length ? [{type: "text", text: turn.user}] : [];
  return {role: "user", content: pictures.length ? [...pictures, ...text] : turn.user};
}

function messagesOf(turn) {
  return [questionOf(turn), {role: "assistant", content: turn.said}];
}

// How long a turn is, in characters or so.
function weight(turn) {
  return turn.user.length + turn.said.length + PICTURE_CHARACTERS * picturesOf(turn).length;
}

// How many turns to forget so that the others and an answer fit, as the numbers in the refusal tell; one at least, all
// at most.
function forget(turns, from, question, problem) {
  const size = list => list.reduce((n, t) => n + weight(t), weight(question));
  const found = /is (\d+) tokens.* in (\d+) tokens/.exec(problem.message);
  const room = found ? size(turns.slice(from)) * found[1] / found[2] * 7 / 8 : Infinity;
  do
    from++;
  while (from < turns.length && size(turns.slice(from)) > room);
  return from;
}

// A request's body with a schema as it was written: a number may have more digits than JavaScript keeps.
function withSchema(body, schema) {
  return !schema ? body : body.slice(0, -1) + ',"response_format":{"type":"json_schema","json_schema":' +
    '{"name":"answer","schema":' + schema + "}}}";
}

// The events of an answer; the first one tells which turns are forgotten. A conversation that is too long is asked
// again without its oldest turns, which are forgotten for good only when an answer to the others comes. question: a turn.
async function* answers(turns, question, {system, schema, ...settings}, signal) {
  const told = system ? [{role: "system", content: system}] : [];
  for (let from = 0, begun = false;;) {
    const messages = [...told, ...turns.slice(from).flatMap(messagesOf), questionOf(question)];
    const body = withSchema(JSON.stringify({...settings, return_progress: true, messages}), schema);
    if (new Blob([body]).size > MAX_BODY_BYTES)
      throw {message: "This conversation is too long to be sent, with its pictures: begin a new chat."};
    const r = await fetch("/v1/chat/completions", {method: "POST", headers: headers(), body, signal});
    let problem = r.ok ? null : await failure(r), ended = false;
    if (r.ok)
      for await (const event of events(r.body)) {
        const choice = event.choices && event.choices[0], delta = choice && choice.delta;
        problem = event.error || null;
        if (problem)
          break;
        ended = ended || Boolean(choice && choice.finish_reason);
        if (!begun && choice && (ended || delta.content || delta.reasoning_content || delta.tool_calls)) {
          begun = true;
          yield {forgotten: turns.slice(0, from)};
        }
        yield event;
      }
    if (!problem && ended)
      return;
    if (!problem)
      throw {message: "The answer broke off."};
    if (begun || problem.code !== "context_length_exceeded" || from >= turns.length)
      throw problem;
    from = forget(turns, from, question, problem);
  }
}

/* ---- turns on the screen, and how one is asked ---- */

const SHOW_EVERY_MS = 33, SHOW_SHARE = 4; // at most one part in four of the time goes into showing
const KEEP_EVERY_MS = 3000, SILENT_AFTER_MS = 2000, MAX_CALLS = 256;
let current = freshChat(); // the conversation on the screen
let running = null;        // stops the answer that comes
let refused = null;        // the last question without an answer, as it stands on the screen
let editing = null;        // the turn that the next message replaces
let queued = false;        // the text in the box is sent when the answer is there
let following = true, lastTop = 0;

function freshChat() {
  return {id: newId(), title: "", changed: 0, turns: []};
}

// Someone who has scrolled up reads there, until the end is in sight again.
function noticeScrolling() {
  const chat = $("chat"), atEnd = chat.scrollHeight - chat.scrollTop - chat.clientHeight < 4;
  following = atEnd || (following && chat.scrollTop >= lastTop);
  lastTop = chat.scrollTop;
}

function follow() {
  noticeScrolling(); // its event comes later than a word may
  if (following)
    $("chat").scrollTop = $("chat").scrollHeight;
  lastTop = $("chat").scrollTop;
}

function showEnd() {
  following = true;
  lastTop = 0;
  follow();
}

function button(kind, text) {
  return Object.assign(element("button", kind, text), {type: "button"});
}

// A turn as a section of the chat: {section, update(), finish()}. The section knows its turn.
class TurnView {
  constructor(turn) {
    const by = known.length > 1 && turn.model ? turn.model : "Answer";
    this.turn = turn;
    this.user = element("article", "user", turn.user);
    if (picturesOf(turn).length)
      this.user.prepend(element("div", "pictures", ...picturesOf(turn).map(pictureButton)));
    this.user.setAttribute("aria-label", "You");
    this.user.dir = "auto";
    this.thought = element("div", "", "");
    this.summary = element("summary", "", "Thinking…");
    this.thinking = element("details", "thinking", this.summary, this.thought);
    this.thinking.hidden = true;
    this.calls = element("div", "calls");
    this.answer = element("div", "answer");
    this.note = element("div", "note");
    this.article = element("article", "assistant", this.thinking, this.calls, this.answer, this.note);
    this.article.setAttribute("aria-label", by);
    this.section = element("section", "turn", this.user, this.article);
    this.section.view = this;
    this.text = new MarkdownText(this.answer);
    this.shown = "";
  }

  update() {
    const {thought, said, calls} = this.turn, node = this.thought.firstChild || this.thought.appendChild(new Text(""));
    this.thinking.hidden = !thought;
    if (thought.length > node.length)
      node.appendData(thought.slice(node.length));
    calls.forEach((call, i) => this.showCall(call, this.calls.children[i]));
    if (said !== this.shown)
      this.text.show(shownText(this.turn));
    this.shown = said;
  }

  showCall(call, at) {
    if (!at)
      at = this.calls.appendChild(element("details", "call", element("summary"), element("pre", "", element("code"))));
    at.firstChild.textContent = "Calls " + call.name;
    if (at.querySelector("code").textContent !== call.arguments)
      at.querySelector("code").textContent = call.arguments;
  }

  finish() {
    this.update();
    this.summary.textContent = "Thoughts";
    this.article.removeAttribute("aria-busy");
    this.note.textContent = this.turn.note || "";
    const branch = button("branch", "Branch"), remove = button("delete", "Delete");
    branch.title = "Go on from here in a copy of this conversation";
    remove.title = "Delete this question and its answer";
    this.article.append(element("div", "actions", button("copy", "Copy"), button("retry last", "Retry"),
                                button("edit last", "Edit question"), branch, remove));
  }
}

// What a schema bound is JSON: as Markdown it would lose signs. None of its lines can end a block of code.
function shownText(turn) {
  return turn.json ? "```json\n" + turn.said : turn.said;
}

function viewOf(node) {
  return node.closest(".turn").view;
}

/* ---- what is on the screen ---- */

const QUESTIONS = ["Explain in three sentences how a rainbow forms.",
                   "Write a Python function that finds all primes below n.",
                   "Plan a quiet weekend: a table with morning, noon and evening."];

function describeModel() {
  const about = document.querySelector(".hello p"), model = known.find(m => m.id === $("model").value);
  if (!about || !model)
    return;
  const speed = speedOf(model.id);
  const bound = $("schema").value.trim() ? " Answers follow the JSON Schema in the settings." : "";
  about.textContent = model.id + " answers, on this machine" +
    (speed ? ", with about " + speed + " tokens a second." : ".") +
    (model.context_length ? " It reads " + model.context_length.toLocaleString("en") + " tokens at most." : "") + bound;
}

function greet() {
  const hello = element("div", "hello", element("h1", "", "Hello. What can I do for you?"), element("p", "note", ""),
                        element("div", "row", ...QUESTIONS.map(q => button("question", q))));
  $("chat").replaceChildren(hello);
  describeModel();
}

function showChat(chat) {
  if (running)
    running.abort();
  setRunning(null);
  edit(null);
  setBoxed(boxed.map(p => ({...p, id: newId()}))); // of no turn any more: each chat keeps its own
  refused = null;
  current = chat;
  document.title = chat.title ? chat.title + " · Tandem" : "Tandem";
  if (chat.turns.length)
    $("chat").replaceChildren(...chat.turns.map(turn => {
      const view = new TurnView(turn);
      view.finish();
      return view.section;
    }));
  else
    greet();
  [...$("kept").children].forEach(markRow);
  showEnd();
}

function hint(text) {
  $("hint").textContent = text;
  $("hint").hidden = !text;
}

// null: nothing is edited any more.
function edit(view) {
  if (editing)
    editing.section.classList.remove("edited");
  editing = view;
  if (editing)
    editing.section.classList.add("edited");
  hint(editing ? "The next message replaces your last one. Escape leaves it." : "");
}

function setQueued(on) {
  if (on || queued)
    hint(on ? "Sent when the answer is there. Escape or a change keeps it here." : "");
  queued = on;
}

function setRunning(controller) {
  running = controller;
  $("stop").hidden = !running;
  if (!running) {
    setQueued(false);
    hint("");
  }
}

/* ---- an answer ---- */

function summary(usage, seconds, ended, limited) {
  const n = usage ? usage.completion_tokens : 0;
  return n + " tokens" + (n > 1 && seconds > 0 ? ", " + ((n - 1) / seconds).toFixed(1) + " a second" : "") +
         (ended !== "length" ? "" : limited ? ", cut at the limit" : ", cut: the model's context is full");
}

function takeCalls(turn, deltas) {
  for (const d of Array.isArray(deltas) ? deltas : []) {
    const i = Number.isInteger(d.index) ? d.index : 0, f = d.function || {};
    if (i >= 0 && i < MAX_CALLS && i <= turn.calls.length) {
      const call = turn.calls[i] = turn.calls[i] || {name: "", arguments: ""};
      call.name += f.name || "";
      call.arguments += f.arguments || "";
    }
  }
}

// How an answer comes along: what is shown while it does.
class Progress {
  constructor(view, by) {
    Object.assign(this, {view, by, began: performance.now(), first: 0, last: 0, n: 0, usage: null, ended: "",
                         reading: "", recovering: "", timer: 0, cost: 0});
    this.clock = setInterval(() => this.tell(), 500);
    view.article.setAttribute("aria-busy", "true"); // a screen reader waits for the whole
    this.tell();
  }

  tell() {
    const now = performance.now(), silent = now - (this.last || this.began);
    const rate = (this.n - 1) / (now - this.first) * 1000;
    this.view.note.textContent = this.by + this.recovering + (this.reading ? this.reading : !this.n ? "waiting… " + Math.round(silent / 1000) + " s" :
      silent > SILENT_AFTER_MS ? "waiting for the next word… " + Math.round(silent / 1000) + " s" :
      this.n > 1 ? "about " + rate.toFixed(0) + " tokens a second" : "");
  }

  // How much of the prompt has been read, which after the loss of a worker is read again.
  takeReading(event) {
    const p = event.prompt_progress;
    if (event.recovering)
      this.recovering = "a worker was lost; the answer goes on: ";
    this.reading = p && p.processed < p.total ? "reading " + p.processed.toLocaleString("en") + " of " +
      p.total.toLocaleString("en") + " tokens (" + Math.floor(100 * p.processed / p.total) + "%)" : "";
    if (p || event.recovering)
      this.tell();
    return p || event.recovering;
  }

  take(event) {
    const choice = event.choices && event.choices[0], turn = this.view.turn;
    this.usage = event.usage || this.usage;
    if (this.takeReading(event) || !choice)
      return;
    this.recovering = "";
    this.last = performance.now();
    this.first = this.first || this.last;
    this.n++;
    this.ended = choice.finish_reason || this.ended;
    turn.thought += choice.delta.reasoning_content || "";
    turn.said += choice.delta.content || "";
    takeCalls(turn, choice.delta.tool_calls);
    this.timer = this.timer || setTimeout(() => this.show(), Math.max(SHOW_EVERY_MS, this.cost * SHOW_SHARE));
  }

  show() {
    const began = performance.now();
    clearTimeout(this.timer);
    this.timer = 0;
    this.view.update();
    follow();
    this.cost = performance.now() - began;
  }

  end() {
    clearInterval(this.clock);
    this.show();
  }

  seconds() {
    return (this.last - this.first) / 1000;
  }
}

async function keepTurns(chat, turns) {
  try {
    await keepChat({...chat, title: chat.title || titleOf(turns[0]), changed: Date.now(), turns});
    complain("store", "");
  } catch (e) {
    complain("store", "The browser could not keep this conversation: " + explain(e));
  }
  others.postMessage("changed");
}

// Shows the question and its answer. The conversation is the one that it was asked in, whatever is on the screen later.
// A turn that it replaces goes when an answer is there, and stays where none comes.
async function ask(text, replaced = null, pictures = []) {
  const chat = current, own = new AbortController(), chosen = settings();
  const turn = {user: text, said: "", thought: "", calls: [], note: "", model: chosen.model, at: Date.now()};
  if (pictures.length)
    turn.pictures = pictures;
  if (chosen.schema)
    turn.json = true;
  const before = chat.turns.filter(t => !replaced || t !== replaced.turn);
  const view = new TurnView(turn), by = known.length > 1 ? chosen.model + ": " : "";
  if (!chat.turns.length)
    $("chat").replaceChildren();
  $("chat").append(view.section);
  if (replaced)
    replaced.section.hidden = true;
  const progress = new Progress(view, by);
  let kept = performance.now(), wrong = null;
  setRunning(own);
  showEnd();
  try {
    const sent = before.filter(t => t.said && !t.forgotten);
    for await (const event of answers(sent, turn, chosen, own.signal)) {
      if (event.forgotten && event.forgotten.length) {
        event.forgotten.forEach(t => { t.forgotten = true; });
        view.user.before(element("article", "note", "The model's context is full: the oldest turns are forgotten."));
      }
      if (event.forgotten)
        continue;
      progress.take(event);
      if (turn.said && performance.now() - kept > KEEP_EVERY_MS) { // a page may be closed in mid-answer
        kept = performance.now();
        keepTurns(chat, [...before, turn]);
      }
    }
    turn.note = by + (turn.said || turn.calls.length ? "" : "no answer, ") +
                summary(progress.usage, progress.seconds(), progress.ended, chosen.max_tokens) +
                (turn.json ? ", by the schema" : "");
    if (progress.usage && progress.usage.completion_tokens > 20 && progress.seconds() > 0)
      rememberSpeed(chosen.model, progress.usage.completion_tokens / progress.seconds());
  } catch (e) {
    wrong = e;
    turn.note = by + (e.name === "AbortError" ? "stopped" : explain(e));
    view.note.className = e.name === "AbortError" ? "note" : "note wrong";
    if (e.status === 401)
      $("key-label").hidden = false;
  }
  progress.end();
  const answered = Boolean(turn.said || turn.calls.length), next = queued && !wrong && answered && chat === current;
  if (answered)
    await endTurn(chat, [...before, turn], view, replaced);
  else if (chat === current)
    takeBack(view, replaced);
  if (running === own)
    setRunning(null);
  if (next && chat === current)
    send();
  listModels(); // there may be others now, or none
}

async function endTurn(chat, turns, view, replaced) {
  if (!chat.title)
    chat.title = titleOf(turns[0]);
  chat.turns = turns;
  if (replaced)
    replaced.section.remove();
  view.finish();
  if (chat === current) {
    history.replaceState(null, "", "#" + chat.id);
    document.title = chat.title + " · Tandem";
    follow();
  }
  await keepTurns(chat, turns);
  await showList();
}

// A question without an answer is no turn: a model that reads empty answers learns to give them.
function takeBack(view, replaced) {
  const {user, pictures = []} = view.turn;
  view.note.textContent = view.turn.note;
  view.article.removeAttribute("aria-busy");
  view.section.replaceWith(refused = element("div", "refused", view.article));
  follow();
  if (replaced)
    replaced.section.hidden = false;
  if (replaced && replaced.turn.user === user && String(pictures.map(p => p.id)) ===
      String(picturesOf(replaced.turn).map(p => p.id)))
    return; // it is on the screen again
  $("text").value = user + (user && $("text").value ? "\n\n" : "") + $("text").value;
  setBoxed([...pictures, ...boxed]);
}

/* ---- a conversation without a turn, and a copy up to one ---- */

const BRANCH = "Branch of ";

// The copy is on the screen afterwards. What was forgotten may fit into it.
async function branchFrom(view) {
  const {title, turns} = current, name = title.startsWith(BRANCH) ? title : BRANCH + title;
  const chat = {...freshChat(), title: name.slice(0, MAX_TITLE), changed: Date.now(),
                turns: structuredClone(turns.slice(0, turns.indexOf(view.turn) + 1))};
  for (const turn of chat.turns) {
    delete turn.forgotten;
    picturesOf(turn).forEach(p => { p.id = newId(); });
  }
  showChat(chat);
  history.replaceState(null, "", "#" + chat.id);
  hint("This is a copy up to here. The conversation that it comes from is as it was.");
  $("text").focus();
  await keepTurns(chat, chat.turns);
  await showList();
}

async function deleteTurn(view) {
  const chat = current;
  if (!await askUser("Delete this question and its answer for ever?", "Delete") || chat !== current)
    return;
  if (editing === view)
    leaveEdit();
  view.section.remove();
  chat.turns = chat.turns.filter(t => t !== view.turn);
  $("text").focus();
  if (chat.turns.length) {
    await keepTurns(chat, chat.turns);
  } else {
    forgetCurrent();
    await deleteChat(chat.id);
    others.postMessage("changed");
  }
  await showList();
}

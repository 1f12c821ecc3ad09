/* ---- models, and what is set ---- */

const ASK_AGAIN_MS = 3000; // for the models, while no list comes
let listing = null, again = 0;
const complaints = {}; // what is wrong, by what it is about
let known = []; // what the server told of each model

const remembered = { // small things; a browser may refuse to keep anything, then until the page is closed
  get(name) { try { return localStorage.getItem(name); } catch { return null; } },
  set(name, value) { try { localStorage.setItem(name, value); } catch { /* see above */ } },
};

// An empty text: nothing is wrong any more.
function complain(about, text) {
  const shown = complaints[about] = complaints[about] || element("p", "wrong");
  if (!text)
    shown.remove();
  else if (!shown.isConnected)
    $("complaint").append(shown);
  if (shown.textContent !== text) // it would be read out again
    shown.textContent = text;
}

function showModels(models) {
  const names = models.map(m => m.id), usual = models.find(m => m.default), before = $("model").value;
  if (!names.length)
    throw {message: "There is no model yet: “tandem pull” or “tandem add” brings one."};
  known = models;
  if (names.join("\n") !== [...$("model").options].map(o => o.value).join("\n")) // an open list stays as it is
    $("model").replaceChildren(...names.map(name => new Option(name)));
  const wanted = [before, remembered.get("model"), usual && usual.id];
  $("model").value = wanted.find(name => names.includes(name)) || names[0];
  describeModel();
  learnWhatItTakes();
}

async function readModels() {
  clearTimeout(again);
  try {
    const r = await fetch("/v1/models", {headers: headers()});
    if (!r.ok)
      throw await failure(r);
    showModels((await r.json()).data);
    complain("models", "");
  } catch (e) {
    if (e.status === 401)
      $("key-label").hidden = false;
    else
      again = setTimeout(listModels, ASK_AGAIN_MS);
    complain("models", explain(e));
  }
}

function listModels() {
  listing = listing || readModels().finally(() => { listing = null; });
  return listing;
}

function settings() {
  const s = {model: $("model").value, stream: true, stream_options: {include_usage: true}};
  if ($("temperature").value)
    s.temperature = Number($("temperature").value);
  if ($("limit").value)
    s.max_tokens = Number($("limit").value);
  if ($("seed").value)
    s.seed = Number($("seed").value);
  if ($("system").value.trim())
    s.system = $("system").value;
  if ($("schema").value.trim())
    s.schema = $("schema").value.trim();
  return s;
}

const FIELDS = ["system", "temperature", "limit", "seed", "schema"];

// Why the schema cannot be sent; "": it can, or there is none. What it says is the server's to judge.
function schemaProblem() {
  const text = $("schema").value.trim();
  try {
    const schema = text ? JSON.parse(text) : true;
    return schema === Object(schema) && !Array.isArray(schema) || typeof schema === "boolean" ? "" :
      "A JSON Schema is an object: it stands in { }.";
  } catch (e) {
    return "The schema is no JSON: " + e.message;
  }
}

function checkSchema() {
  const problem = schemaProblem();
  $("schema").setCustomValidity(problem);
  $("schema-wrong").textContent = problem;
}

function keepSettings() {
  remembered.set("settings", JSON.stringify(Object.fromEntries(FIELDS.map(id => [id, $(id).value]))));
}

function restoreSettings() {
  let values = {};
  try {
    values = JSON.parse(remembered.get("settings")) || {};
  } catch { /* as if nothing was set */ }
  for (const id of FIELDS)
    $(id).value = String(values[id] || "");
  checkSchema();
}

// Whether what is set can be sent; if not, it is shown.
function settingsAreGood() {
  checkSchema();
  const wrong = FIELDS.map($).find(field => !field.checkValidity());
  if (wrong && !$("settings").open)
    $("settings").showModal();
  return !wrong || wrong.reportValidity();
}

/* The speed of the last answers, so that the empty page can tell what to expect. */

function rememberSpeed(model, rate) {
  let speeds = {};
  try {
    speeds = JSON.parse(remembered.get("speeds")) || {};
  } catch { /* none is known */ }
  remembered.set("speeds", JSON.stringify({...speeds, [model]: Math.round(rate)}));
}

function speedOf(model) {
  try {
    return Number(JSON.parse(remembered.get("speeds"))[model]) || 0;
  } catch {
    return 0;
  }
}

/* ---- the models: their sizes, which are in memory, load and unload ---- */

const READ_EVERY_MS = 2000; // while the list is on the screen
const STATES = {available: "on disk", loading: "is being loaded", loaded: "in memory", failed: "cannot be used"};
const doing = new Map();    // by model: what was asked for here and is not done yet
let mayUnload = true;       // until the server says no
let readAgain = 0, nRead = 0, drawn = "";

function sizeText(bytes) {
  return bytes >= 1e9 ? (bytes / 1e9).toFixed(1) + " GB" : (bytes / 1e6).toFixed(1) + " MB";
}

// What the list says of a model. file: its entry of /api/tags, if there is one.
function aboutModel(m, file) {
  const {parameter_size = "", quantization_level = ""} = file && file.details || {};
  return [file && file.size ? sizeText(file.size) : "", parameter_size && parameter_size + " parameters",
          quantization_level, takesPictures(m.id) ? "takes pictures" : "", m.default ? "the default" : "",
          doing.get(m.id) || STATES[m.state] || m.state].filter(Boolean).join(", ");
}

function modelRow(m, file) {
  const about = element("span", "note", aboutModel(m, file));
  const loaded = m.state === "loaded", act = button(loaded ? "unload" : "load", loaded ? "Unload" : "Load");
  act.setAttribute("aria-label", act.textContent + " " + m.id);
  act.disabled = doing.has(m.id) || m.state === "loading";
  act.hidden = loaded && !mayUnload;
  act.model = m.id;
  return element("li", "", element("div", "", element("strong", "", m.id), about), act);
}

// Rows are made anew where one changed; the button that has the focus gets it again, unless there is none any more.
function drawModels(models, files) {
  const now = JSON.stringify([mayUnload, models.map(m => [m.id, m.state, aboutModel(m, files.get(m.id))])]);
  if (now === drawn)
    return;
  drawn = now;
  const at = document.activeElement && document.activeElement.model;
  $("models-list").replaceChildren(...models.map(m => modelRow(m, files.get(m.id))));
  const act = at && [...$("models-list").querySelectorAll("button")].find(b => b.model === at);
  if (act)
    (act.disabled || act.hidden ? $("models-close") : act).focus();
}

async function askFor(path) {
  const r = await fetch(path, {headers: headers()});
  if (!r.ok)
    throw await failure(r);
  return r.json();
}

async function readManaged() {
  const own = ++nRead;
  clearTimeout(readAgain);
  try {
    const [{data}, tags] = await Promise.all([askFor("/v1/models"), askFor("/api/tags")]);
    if (own !== nRead)
      return; // a later one tells more
    const files = new Map((tags.models || []).map(f => [f.name.replace(/:latest$/, ""), f]));
    if (data.length)
      showModels(data);
    drawModels(data, files);
    $("models-wrong").textContent = "";
  } catch (e) {
    $("models-wrong").textContent = explain(e);
  }
  if (own === nRead && $("models").open)
    readAgain = setTimeout(readManaged, READ_EVERY_MS);
}

// An Ollama request without a prompt loads; with keep_alive 0 it unloads.
async function manage(model, unload) {
  doing.set(model, unload ? "is being unloaded" : STATES.loading);
  $("models-said").textContent = "";
  $("models-failed").textContent = "";
  readManaged();
  try {
    const body = JSON.stringify({model, stream: false, ...(unload ? {keep_alive: 0} : {})});
    const r = await fetch("/api/generate", {method: "POST", headers: headers(), body});
    if (!r.ok)
      throw await failure(r);
    $("models-said").textContent = model + (unload ? " is no longer in memory." : " is in memory.");
  } catch (e) {
    const denied = unload && e.status === 403;
    mayUnload = mayUnload && !denied;
    $("models-failed").textContent = denied ? "Models are unloaded by the owner of Tandem’s daemon alone: “tandem unload " +
      model + "” in a terminal." : "“" + model + "” was not " + (unload ? "unloaded: " : "loaded: ") + explain(e);
  }
  doing.delete(model);
  await readManaged();
}

$("models-open").addEventListener("click", () => {
  $("models-said").textContent = "";
  $("models-failed").textContent = "";
  $("models").showModal();
  readManaged();
});
$("models-list").addEventListener("click", e => {
  const act = e.target.closest("button");
  if (act)
    manage(act.model, act.classList.contains("unload"));
});
$("models").addEventListener("close", () => clearTimeout(readAgain));
$("models").querySelector("form").addEventListener("submit", e => {
  e.preventDefault();
  $("models").close();
});

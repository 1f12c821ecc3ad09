/* ---- the box, the buttons and the keys ---- */

const others = new BroadcastChannel("tandem"); // pages of this browser that show the same list

function fitText() {
  $("text").style.height = "auto";
  $("text").style.height = $("text").scrollHeight + "px";
  $("send").disabled = !$("text").value.trim() && !boxed.length;
  follow();
}

async function send() {
  if (adding)
    await added;
  const text = $("text").value.trimEnd(); // a first line may begin with blanks
  if ((!text && !boxed.length) || !settingsAreGood())
    return;
  if (running) {
    setQueued(true);
    return;
  }
  if (!$("model").value)
    await listModels();
  if (running || !$("model").value || !picturesAreGood(boxed, editing))
    return;
  $("text").value = "";
  const replaced = editing, pictures = boxed;
  setBoxed([]);
  edit(null);
  if (refused)
    refused.remove();
  refused = null;
  fitText();
  ask(text, replaced, pictures);
}

function beginEdit(view) {
  edit(view);
  $("text").value = view.turn.user;
  setBoxed(picturesOf(view.turn));
  $("text").focus();
}

function leaveEdit() {
  edit(null);
  $("text").value = "";
  setBoxed([]);
}

function newChat() {
  history.replaceState(null, "", location.pathname);
  showChat(freshChat());
  showSide(false);
  $("text").focus();
}

function forgetCurrent() {
  current.deleted = true;
  newChat();
}

function showSide(on) {
  document.body.classList.toggle("with-side", on);
  $("sides").setAttribute("aria-expanded", String(on));
}

async function openChat(id) {
  const chat = id && await readChat(id, true);
  if (chat && chat.id !== current.id)
    showChat(chat);
  if (chat)
    history.replaceState(null, "", "#" + id);
}

let asking = null; // what the open dialog answers: {resolve, wantsText}

// Asks in a dialog: the text that is wanted, or true; null where the user does not want it.
function askUser(question, yes, text = null) {
  const dialog = $("sure"), field = $("sure-text");
  $("sure-title").textContent = question;
  $("sure-yes").textContent = yes;
  field.hidden = text === null;
  field.value = text || "";
  dialog.returnValue = "";
  if (asking)
    asking.resolve(null);
  dialog.showModal();
  return new Promise(resolve => { asking = {resolve, wantsText: text !== null}; });
}

// The event of a dialog that closed may come when the next question is on the screen: it is none of its answers.
function endAsking() {
  const wanted = $("sure").returnValue, text = $("sure-text").value.trim().slice(0, MAX_TITLE);
  if ($("sure").open || !asking)
    return;
  asking.resolve(!wanted ? null : asking.wantsText ? text || null : true);
  asking = null;
}

async function copyText(from, text) {
  if (navigator.clipboard) { // a browser gives it to safe origins alone
    await navigator.clipboard.writeText(text);
  } else {
    const area = element("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  from.textContent = "Copied";
  setTimeout(() => { from.textContent = "Copy"; }, 1500);
}

$("form").addEventListener("submit", e => {
  e.preventDefault();
  send();
});
$("text").addEventListener("input", () => {
  setQueued(false);
  fitText();
});
$("text").addEventListener("keydown", e => {
  if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
    e.preventDefault();
    send();
  } else if (e.key === "Escape" && queued) {
    setQueued(false);
  } else if (e.key === "Escape" && editing) {
    leaveEdit();
  } else if (e.key === "ArrowUp" && !e.target.value && !boxed.length && !running) {
    const last = document.querySelector(".turn:last-of-type");
    if (last) {
      e.preventDefault();
      beginEdit(last.view);
    }
  }
});
$("stop").addEventListener("click", () => {
  if (running)
    running.abort();
  $("text").focus();
});
$("clear").addEventListener("click", newChat);
$("model").addEventListener("change", () => {
  remembered.set("model", $("model").value);
  complain("pictures", "");
  describeModel();
  learnWhatItTakes();
});
$("key").addEventListener("change", async () => {
  await listing; // that went without the key
  listModels();
});

$("chat").addEventListener("scroll", noticeScrolling);
$("chat").addEventListener("click", e => {
  const pressed = e.target.closest("button");
  if (!pressed)
    return;
  const has = kind => pressed.classList.contains(kind), code = pressed.closest(".code");
  if (running && !queued && ["retry", "edit", "branch", "delete"].some(has))
    hint("An answer comes: wait until it is there, or stop it.");
  else if (has("copy"))
    copyText(pressed, code ? code.querySelector("code").textContent : viewOf(pressed).turn.said);
  else if (has("question") && !running && $("model").value && settingsAreGood())
    ask(pressed.textContent);
  else if (has("retry") && !running && settingsAreGood()) {
    const view = viewOf(pressed), pictures = picturesOf(view.turn);
    if (!picturesAreGood(pictures, view))
      return;
    edit(null);
    ask(view.turn.user, view, pictures);
  } else if (has("edit") && !running)
    beginEdit(viewOf(pressed));
  else if (has("branch") && !running)
    branchFrom(viewOf(pressed));
  else if (has("delete") && !running)
    deleteTurn(viewOf(pressed));
});

$("kept").addEventListener("click", async e => {
  const pressed = e.target.closest("button"), entry = pressed && pressed.parentElement.chat;
  if (!entry)
    return;
  if (pressed.classList.contains("open")) {
    await openChat(entry.id);
    showSide(false);
    $("text").focus();
    return;
  }
  if (pressed.classList.contains("rename")) {
    const title = await askUser("A new name for “" + entry.title + "”", "Rename", entry.title);
    if (!title)
      return;
    await renameChat(entry, title);
    if (entry.id === current.id)
      current.title = title;
  } else {
    if (!await askUser("Delete “" + entry.title + "” for ever?", "Delete"))
      return;
    if (entry.id === current.id)
      forgetCurrent();
    await deleteChat(entry.id);
  }
  others.postMessage("changed");
  await showList();
});
$("find").addEventListener("input", showList);
$("sides").addEventListener("click", () => {
  showSide(!document.body.classList.contains("with-side"));
  if (document.body.classList.contains("with-side"))
    $("find").focus();
});
document.addEventListener("keydown", e => {
  if (e.key === "Escape" && document.body.classList.contains("with-side")) {
    showSide(false);
    $("sides").focus();
  }
});

$("gear").addEventListener("click", () => {
  $("save-markdown").disabled = $("save-json").disabled = !current.turns.length;
  $("settings").showModal();
});
$("settings").addEventListener("change", () => {
  keepSettings();
  describeModel();
});
$("schema").addEventListener("change", checkSchema);
$("schema").addEventListener("input", () => {
  $("schema").setCustomValidity(schemaProblem()); // said when it is left or sent, not at each key
  if ($("schema").checkValidity())
    $("schema-wrong").textContent = "";
});
$("settings").querySelector("form").addEventListener("submit", e => {
  e.preventDefault();
  $("settings").close();
});
$("save-markdown").addEventListener("click", () =>
  saveFile(fileName(current, ".md"), "text/markdown", asMarkdown(current)));
$("save-json").addEventListener("click", () =>
  saveFile(fileName(current, ".json"), "application/json", JSON.stringify(current, null, 1)));
$("save-all").addEventListener("click", saveAll);
$("wipe").addEventListener("click", async () => {
  if (!await askUser("Delete all conversations for ever?", "Delete all"))
    return;
  forgetCurrent();
  await deleteAllChats();
  others.postMessage("changed");
  await showList();
});
$("sure").querySelector("form").addEventListener("submit", e => {
  e.preventDefault();
  $("sure").close("yes");
});
$("sure-no").addEventListener("click", () => $("sure").close(""));
$("sure").addEventListener("close", endAsking);

others.addEventListener("message", showList);
addEventListener("focus", listModels); // of the window
addEventListener("resize", follow);
addEventListener("hashchange", () => openChat(location.hash.slice(1)));

greet();
restoreSettings();
listModels();
showList();
openChat(location.hash.slice(1));

/* ---- conversations, kept in the browser ----
   Two stores: `list` has what the list shows, `chats` all turns. Where the browser keeps nothing, they live until the
   page is closed. A chat: {id, title, changed, turns}. A turn: {user, said, thought, calls, note, at, forgotten}. */

const MAX_TITLE = 100, MAX_FOUND_CHARACTERS = 1000;
const store = {opened: null, list: new Map(), chats: new Map(), lasts: true};

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function openStore() {
  store.opened = store.opened || new Promise(resolve => {
    const request = indexedDB.open("tandem", 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("list", {keyPath: "id"});
      request.result.createObjectStore("chats", {keyPath: "id"});
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = request.onblocked = () => resolve(null);
  }).catch(() => null);
  return store.opened;
}

// Calls act(list, chats) with the two stores of one transaction, and waits until all of it is kept.
async function inStore(mode, act) {
  const db = await openStore();
  if (!db) {
    store.lasts = false;
    return act(null, null);
  }
  const transaction = db.transaction(["list", "chats"], mode);
  const ended = new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onerror = transaction.onabort = () => reject(transaction.error || new Error("nothing could be kept"));
  });
  ended.catch(() => {}); // act() may throw first
  const result = await act(transaction.objectStore("list"), transaction.objectStore("chats"));
  await ended;
  return result;
}

function keepChat({id, title, changed, turns, deleted}) {
  if (deleted) // its last answer ended afterwards
    return Promise.resolve();
  return inStore("readwrite", (list, chats) => {
    if (!list) {
      store.list.set(id, {id, title, changed});
      store.chats.set(id, {id, turns});
      return;
    }
    list.put({id, title, changed});
    chats.put({id, turns});
  });
}

function renameChat(entry, title) {
  const renamed = {...entry, title};
  return inStore("readwrite", list => { list ? list.put(renamed) : store.list.set(entry.id, renamed); });
}

async function readChat(id) {
  const [entry, chat] = await inStore("readonly", (list, chats) => list ?
    Promise.all([done(list.get(id)), done(chats.get(id))]) : [store.list.get(id), store.chats.get(id)]);
  return entry && chat ? {...entry, turns: chat.turns} : null;
}

async function listChats() {
  const all = await inStore("readonly", list => list ? done(list.getAll()) : [...store.list.values()]);
  return all.sort((a, b) => b.changed - a.changed);
}

function deleteChat(id) {
  return inStore("readwrite", (list, chats) => {
    for (const part of list ? [list, chats] : [store.list, store.chats])
      part.delete(id);
  });
}

function deleteAllChats() {
  return inStore("readwrite", (list, chats) => {
    for (const part of list ? [list, chats] : [store.list, store.chats])
      part.clear();
  });
}

function newId() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map(b => b.toString(16).padStart(2, "0")).join("");
}

function titleOf(text) {
  return text.trim().split("\n")[0].trim().slice(0, MAX_TITLE) || "Conversation";
}

function chatHas(chat, word) {
  return chat.turns.some(t => t.user.toLowerCase().includes(word) || t.said.toLowerCase().includes(word));
}

/* As files. */

function asMarkdown(chat) {
  const parts = ["# " + chat.title];
  for (const t of chat.turns)
    parts.push("## You", t.user, "## " + (t.model || "Answer"),
               ...t.calls.map(c => "Calls `" + c.name + "` with `" + c.arguments + "`"), t.said);
  return parts.join("\n\n") + "\n";
}

function saveFile(name, type, text) {
  const a = element("a"), url = URL.createObjectURL(new Blob([text], {type}));
  a.href = url;
  a.download = name;
  a.click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

function fileName(chat, ending) {
  return (chat.title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "conversation") + ending;
}

async function saveAll() {
  const all = [];
  for (const {id} of await listChats())
    all.push(await readChat(id));
  saveFile("conversations.json", "application/json", JSON.stringify(all.filter(Boolean), null, 1));
}

/* The list at the side. */

let listed = 0; // which list is the newest: a search may end after the next one began

function chatRow(entry) {
  const row = $("row").content.firstElementChild.cloneNode(true);
  const [open, rename, remove] = row.querySelectorAll("button");
  row.chat = entry;
  open.textContent = open.title = entry.title;
  rename.setAttribute("aria-label", "Rename " + entry.title);
  remove.setAttribute("aria-label", "Delete " + entry.title);
  markRow(row);
  return row;
}

function markRow(row) {
  const own = row.chat.id === current.id;
  row.classList.toggle("current", own);
  row.firstElementChild.setAttribute("aria-current", own ? "page" : "false");
}

async function showList() {
  const own = ++listed, word = $("find").value.trim().toLowerCase().slice(0, MAX_FOUND_CHARACTERS);
  const found = [];
  for (const entry of await listChats()) {
    if (own !== listed)
      return;
    const chat = !word || entry.title.toLowerCase().includes(word) ? null : await readChat(entry.id);
    if (!word || entry.title.toLowerCase().includes(word) || (chat && chatHas(chat, word)))
      found.push(entry);
  }
  if (own !== listed)
    return;
  $("kept").replaceChildren(...found.map(chatRow));
  $("kept-note").textContent = !store.lasts ? "This browser keeps nothing: conversations end with the page." :
    found.length ? "" : word ? "Nothing found." : "Conversations will be here. They stay in this browser.";
}

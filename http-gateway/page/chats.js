/* ---- conversations, kept in the browser ----
   Three stores: `list` has what the list shows, `chats` all turns, `pictures` those of the turns, so that a search reads
   none of them. Where the browser keeps nothing, they live until the page is closed. A chat: {id, title, changed, turns}.
   A turn: {user, said, thought, calls, note, at, forgotten, pictures, json}. */

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
    const request = indexedDB.open("tandem", 2);
    request.onupgradeneeded = ({oldVersion}) => {
      const db = request.result;
      if (oldVersion < 1)
        ["list", "chats"].forEach(name => db.createObjectStore(name, {keyPath: "id"}));
      db.createObjectStore("pictures", {keyPath: "id"}).createIndex("chat", "chat");
    };
    request.onsuccess = () => {
      request.result.onversionchange = () => { // a newer page: it would wait for this one
        request.result.close();
        store.opened = null;
      };
      store.opened = Promise.resolve(request.result); // it may have been given up
      resolve(request.result);
      if (!store.lasts)
        keepWhatWasSaid();
    };
    request.onerror = request.onblocked = () => resolve(null); // blocked: by an older page, until it is closed
  }).catch(() => null);
  return store.opened;
}

// The store came late: what was said meanwhile goes into it.
async function keepWhatWasSaid() {
  const said = [...store.list.values()].map(entry => ({...entry, turns: store.chats.get(entry.id).turns}));
  store.lasts = true;
  store.list.clear();
  store.chats.clear();
  for (const chat of said)
    await keepChat(chat);
  await showList();
}

// Calls act(list, chats, pictures) with the stores of one transaction, and waits until all of it is kept, or nothing.
async function inStore(mode, act) {
  const db = await openStore();
  if (!db) {
    store.lasts = false;
    return act(null, null, null);
  }
  const transaction = db.transaction(["list", "chats", "pictures"], mode);
  const ended = new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onerror = transaction.onabort = () => reject(transaction.error || new Error("nothing could be kept"));
  });
  ended.catch(() => {}); // act() may throw first
  try {
    const result = await act(...["list", "chats", "pictures"].map(name => transaction.objectStore(name)));
    await ended;
    return result;
  } catch (e) {
    try { transaction.abort(); } catch { /* it has ended */ }
    throw e;
  }
}

function keepChat({id, title, changed, turns, deleted}) {
  if (deleted) // its last answer ended afterwards
    return Promise.resolve();
  return inStore("readwrite", async (list, chats, pictures) => {
    if (!list) {
      store.list.set(id, {id, title, changed});
      store.chats.set(id, {id, turns});
      return;
    }
    list.put({id, title, changed});
    chats.put({id, turns: turns.map(withoutUrls)});
    const used = new Map(turns.flatMap(picturesOf).map(p => [p.id, p]));
    for (const key of await done(pictures.index("chat").getAllKeys(id)))
      if (!used.delete(key)) // those that are left are new
        pictures.delete(key);
    for (const p of used.values())
      if (p.url)
        pictures.put({id: p.id, chat: id, url: p.url});
  });
}

function withoutUrls(turn) {
  return turn.pictures ? {...turn, pictures: turn.pictures.map(({url, ...rest}) => rest)} : turn;
}

function renameChat(entry, title) {
  const renamed = {...entry, title};
  return inStore("readwrite", list => { list ? list.put(renamed) : store.list.set(entry.id, renamed); });
}

// whole: with its pictures.
async function readChat(id, whole = false) {
  const [entry, chat, kept] = await inStore("readonly", (list, chats, pictures) => list ?
    Promise.all([done(list.get(id)), done(chats.get(id)), whole ? done(pictures.index("chat").getAll(id)) : []]) :
    [store.list.get(id), store.chats.get(id), []]);
  const urls = new Map(kept.map(p => [p.id, p.url]));
  for (const p of chat ? chat.turns.flatMap(picturesOf) : [])
    p.url = urls.get(p.id) || p.url;
  return entry && chat ? {...entry, turns: chat.turns} : null;
}

async function listChats() {
  const all = await inStore("readonly", list => list ? done(list.getAll()) : [...store.list.values()]);
  return all.sort((a, b) => b.changed - a.changed);
}

function deleteChat(id) {
  return inStore("readwrite", async (list, chats, pictures) => {
    for (const part of list ? [list, chats] : [store.list, store.chats])
      part.delete(id);
    for (const key of pictures ? await done(pictures.index("chat").getAllKeys(id)) : [])
      pictures.delete(key);
  });
}

function deleteAllChats() {
  return inStore("readwrite", (list, chats, pictures) => {
    for (const part of list ? [list, chats, pictures] : [store.list, store.chats])
      part.clear();
  });
}

function newId() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map(b => b.toString(16).padStart(2, "0")).join("");
}

// Of the first turn.
function titleOf({user, pictures = []}) {
  return user.trim().split("\n")[0].trim().slice(0, MAX_TITLE) || (pictures[0] && pictures[0].name) || "Conversation";
}

function chatHas(chat, word) {
  return chat.turns.some(t => [t.user, t.said, ...picturesOf(t).map(p => p.name)]
    .some(text => text.toLowerCase().includes(word)));
}

/* As files. */

function asMarkdown(chat) {
  const parts = ["# " + chat.title];
  for (const t of chat.turns)
    parts.push("## You", ...picturesOf(t).map(p => "Picture “" + p.name + "”"), ...(t.user ? [t.user] : []),
               "## " + (t.model || "Answer"),
               ...t.calls.map(c => "Calls `" + c.name + "` with `" + c.arguments + "`"),
               t.json ? shownText(t) + "\n```" : t.said);
  return parts.join("\n\n") + "\n";
}

function saveFile(name, type, ...parts) {
  const a = element("a"), url = URL.createObjectURL(new Blob(parts, {type}));
  a.href = url;
  a.download = name;
  a.click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

function fileName(chat, ending) {
  return (chat.title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "conversation") + ending;
}

// In parts: with their pictures they may be longer than a text can be.
async function saveAll() {
  const parts = [];
  for (const {id} of await listChats()) {
    const chat = await readChat(id, true);
    if (chat)
      parts.push(parts.length ? ",\n" : "", new Blob([JSON.stringify(chat, null, 1)]));
  }
  saveFile("conversations.json", "application/json", "[", ...parts, "]\n");
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

/* ---- pictures: in the box, in turns, and whether a model takes them ----
   A picture: {id, name, type, size, width, height, url}. Its url is a data: URL: what is sent is what is shown, and
   the page's policy needs no other source of pictures. */

const MAX_BODY_BYTES = 8 << 20;                // as the server has it
const MAX_PICTURES_BYTES = 6e6;                // of a conversation: in base64 that leaves room for texts
const MAX_PICTURES = 64, MAX_SIDE = 16384, MAX_PIXELS = 64 << 20, MAX_NAME = 100;
let boxed = [];                                // the pictures of the next message
let adding = 0, added = Promise.resolve();     // how many are being read, and when the last one is there
const shows = new Map(), learning = new Map(); // by model: whether it takes pictures; a question that has no answer yet

function picturesOf(turn) {
  return turn.pictures || [];
}

function megabytes(bytes) { // rounded up: what is too large has to look so
  return Math.ceil(bytes / 1e5) / 10 + " MB";
}

/* Whether a model takes them. The list of models tells it once a model was used. */

function takesPictures(model) {
  const m = known.find(m => m.id === model);
  return m && m.capabilities ? m.capabilities.includes("vision") : shows.get(model);
}

async function askWhatItTakes(model) {
  try {
    const r = await fetch("/api/show", {method: "POST", headers: headers(), body: JSON.stringify({model})});
    if (r.ok)
      shows.set(model, (await r.json()).capabilities.includes("vision"));
  } catch { /* it is asked with the next list of models */ }
  learning.delete(model);
}

function showAttach() {
  $("attach").hidden = takesPictures($("model").value) !== true;
}

async function learnWhatItTakes() {
  const model = $("model").value;
  showAttach();
  if (model && takesPictures(model) === undefined) {
    if (!learning.has(model))
      learning.set(model, askWhatItTakes(model));
    await learning.get(model);
    showAttach();
  }
}

/* Reading a file. */

// What its first bytes say; a name may lie.
function pictureType(head) {
  const text = String.fromCharCode(...head);
  return text.startsWith("\x89PNG\r\n\x1a\n") ? "image/png" : text.startsWith("\xff\xd8\xff") ? "image/jpeg" :
    text.startsWith("RIFF") && text.slice(8, 12) === "WEBP" ? "image/webp" : "";
}

function dataUrl(blob) {
  const reader = new FileReader();
  return new Promise((resolve, reject) => {
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

function sidesOf(url) {
  const image = new Image();
  return new Promise((resolve, reject) => {
    image.onload = () => resolve({width: image.naturalWidth, height: image.naturalHeight});
    image.onerror = reject;
    image.src = url;
  });
}

// Of the turns on the screen, but for one that the box replaces.
function picturesInTurns(without = editing) {
  return [...document.querySelectorAll(".turn")].map(s => s.view)
    .flatMap(v => v === without || v.section.hidden ? [] : picturesOf(v.turn));
}

function sum(pictures) {
  return pictures.reduce((n, p) => n + p.size, 0);
}

// Why they are too many or too large together; "": they are not.
function tooMuch(pictures, others) {
  const last = pictures[pictures.length - 1], rest = sum(pictures) + sum(others) - (last ? last.size : 0);
  if (!last)
    return "";
  if (last.size > MAX_PICTURES_BYTES)
    return "“" + last.name + "” has " + megabytes(last.size) + "; the server takes " + megabytes(MAX_PICTURES_BYTES) +
      " of pictures. The page does not make it smaller: save it smaller and add it again.";
  if (rest + last.size > MAX_PICTURES_BYTES)
    return "“" + last.name + "” has " + megabytes(last.size) + ", and this conversation’s other pictures have " +
      megabytes(rest) + ". Together they may have " + megabytes(MAX_PICTURES_BYTES) +
      ": delete a picture, or begin a new chat.";
  if (pictures.length + others.length > MAX_PICTURES)
    return "A conversation has " + MAX_PICTURES + " pictures at most: begin a new chat.";
  return "";
}

async function readPicture(file) {
  const name = (file.name || "picture").slice(0, MAX_NAME), about = "“" + name + "” ";
  const type = pictureType(new Uint8Array(await file.slice(0, 12).arrayBuffer()));
  if (!type)
    throw {message: about + "is no PNG, JPEG or WebP, and other files cannot be sent."};
  const much = tooMuch([...boxed, {name, size: file.size}], picturesInTurns());
  if (much)
    throw {message: much};
  const url = await dataUrl(new Blob([file], {type}));
  const {width, height} = await sidesOf(url).catch(() => { throw {message: about + "is damaged: it cannot be shown."}; });
  if (width > MAX_SIDE || height > MAX_SIDE || width * height > MAX_PIXELS)
    throw {message: about + "has " + width.toLocaleString("en") + " × " + height.toLocaleString("en") +
      " pixels. A side has " + MAX_SIDE.toLocaleString("en") + " at most, and the whole " +
      MAX_PIXELS.toLocaleString("en") + "."};
  return {id: newId(), name, type, size: file.size, width, height, url};
}

// One behind the other, so that each one sees how much room there is left.
function addPictures(files) {
  files = [...files];
  adding++;
  added = added.then(async () => {
    const wrong = [];
    complain("pictures", "");
    await learnWhatItTakes();
    if (takesPictures($("model").value) === false) { // its projector may have come since it was asked
      await askWhatItTakes($("model").value);
      await listModels();
      showAttach();
    }
    if (takesPictures($("model").value) === false)
      wrong.push(cannotSee());
    else
      for (const file of files) {
        try {
          boxed.push(await readPicture(file));
        } catch (e) {
          wrong.push(explain(e));
        }
        if (wrong.length === 3)
          break; // a folder of other files was dropped
      }
    complain("pictures", wrong.join(" "));
    drawBoxed();
  }).finally(() => { adding--; });
  return added;
}

function cannotSee() {
  const able = known.find(m => takesPictures(m.id));
  return "“" + $("model").value + "” takes no pictures: choose a model that does" +
    (able ? ", such as “" + able.id + "”." : ". It has its projector (mmproj) beside it.");
}

// Whether these can be sent with what is in the conversation; if not, it is said.
function picturesAreGood(pictures, replaced) {
  const others = picturesInTurns(replaced), some = pictures.length + others.length;
  let wrong = tooMuch(pictures, others);
  if (some && takesPictures($("model").value) === false)
    wrong = pictures.length ? cannotSee() : "This conversation has pictures. " + cannotSee();
  complain("pictures", wrong);
  return !wrong;
}

/* On the screen. */

function pictureImage(p) {
  const image = element("img");
  if (p.width && p.height)
    Object.assign(image, {width: p.width, height: p.height}); // its place is there before it is drawn
  return Object.assign(image, {alt: p.name, decoding: "async", src: p.url});
}

// A picture as a button that shows it large.
function pictureButton(p) {
  if (!p.url)
    return element("span", "note", "“" + p.name + "” is not kept any more.");
  const b = element("button", "picture", pictureImage(p));
  b.setAttribute("aria-label", "Show " + p.name);
  b.addEventListener("click", () => {
    $("look-name").textContent = p.name + ", " + p.width + " × " + p.height + " pixels, " + megabytes(p.size);
    $("look-picture").replaceChildren(pictureImage(p));
    $("look").showModal();
  });
  return Object.assign(b, {type: "button", title: p.name});
}

function drawBoxed() {
  $("boxed").replaceChildren(...boxed.map(p => {
    const remove = button("remove", "×");
    remove.setAttribute("aria-label", "Remove " + p.name);
    remove.title = "Remove";
    remove.addEventListener("click", () => removeBoxed(p));
    return element("li", "", pictureButton(p), remove);
  }));
  $("boxed").hidden = !boxed.length;
  fitText();
}

function setBoxed(pictures) {
  boxed = [...pictures];
  drawBoxed();
}

function removeBoxed(picture) {
  const at = boxed.indexOf(picture);
  complain("pictures", "");
  setBoxed(boxed.filter(p => p !== picture));
  ($("boxed").querySelectorAll(".remove")[Math.min(at, boxed.length - 1)] || $("text")).focus();
}

/* The three ways into the box. */

const hasFiles = e => e.dataTransfer && [...e.dataTransfer.types].includes("Files");
const setDropping = on => document.body.classList.toggle("dropping", on);

document.addEventListener("dragover", e => {
  if (!hasFiles(e))
    return;
  e.preventDefault(); // else the browser leaves the page for the file
  setDropping(true);
});
document.addEventListener("dragleave", e => {
  if (!e.relatedTarget) // it left the window
    setDropping(false);
});
document.addEventListener("drop", e => {
  if (!hasFiles(e))
    return;
  e.preventDefault();
  setDropping(false);
  addPictures(e.dataTransfer.files);
  $("text").focus();
});
$("text").addEventListener("paste", e => {
  const {files} = e.clipboardData;
  if (!files.length || e.clipboardData.getData("text/plain")) // office programs add a picture of a text
    return;
  e.preventDefault();
  addPictures(files);
});
$("attach").addEventListener("click", () => $("files").click());
$("files").addEventListener("change", async () => {
  await addPictures($("files").files);
  $("files").value = ""; // so that the same one can be chosen again
  $("text").focus();
});
$("look").querySelector("form").addEventListener("submit", e => {
  e.preventDefault();
  $("look").close();
});

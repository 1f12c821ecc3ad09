/* ---- Markdown ----
   What chat models write of it, as DOM nodes. Text never becomes HTML: tags are shown as they are. A text that grows
   is a row of blocks; only the last one is made anew. All work is bounded: a hostile text costs no more than a long
   one. */

const MAX_NESTED = 12;    // lists and quotes in one another; marks of emphasis that are open at once
const MAX_STYLED = 20000; // characters of one paragraph; a longer one keeps its signs
const MAX_JOINED = 4000;  // characters after which a paragraph ends with its line
const MAX_COLUMNS = 100;

function element(tag, kind, ...children) {
  const e = document.createElement(tag);
  if (kind)
    e.className = kind;
  e.append(...children);
  return e;
}

/* Within a line: code, links, emphasis. */

// [text](address "title"); an address may hold brackets in pairs
const LINK = new RegExp(String.raw`!?\[([^[\]\n]{1,400})\]\(\s{0,9}<?((?:[^\s()<>]|\([^\s()<>]{0,200}\)){1,2000})>?` +
                        String.raw`(?:\s{1,9}"[^"\n]{0,300}")?\s{0,9}\)`, "y");
const BARE = /<?(https?:\/\/[^\s<>"'`|]{1,2000})>?/y;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const WORD = /[\p{L}\p{N}]/u;
const EMPHASIS = {"*": "em", "_": "em", "**": "strong", "__": "strong", "~~": "del"};

// The address of a link that may be followed, or null. No scheme but these does nothing by itself.
function safeAddress(text) {
  try {
    const url = new URL(text);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function linkNode(address, text) {
  const a = element("a", "", text);
  a.href = address;
  a.target = "_blank";
  a.rel = "noopener noreferrer";
  return a;
}

// A link at this place: how many characters it takes and its nodes, or null. Pictures are links too: nothing is loaded.
function linkAt(text, at) {
  LINK.lastIndex = BARE.lastIndex = at;
  const named = LINK.exec(text), bare = named ? null : BARE.exec(text);
  if (named) {
    const address = safeAddress(named[2]);
    return address && {size: named[0].length, nodes: [linkNode(address, named[1]),
                                                      element("span", "address", " (" + address + ")")]};
  }
  if (!bare || (at > 0 && WORD.test(text[at - 1])))
    return null;
  let shown = bare[1];
  const closed = bare[0].startsWith("<") && bare[0].endsWith(">");
  while (!closed && /[.,;:!?\]*_~]/.test(shown.at(-1)) || (shown.endsWith(")") && !shown.includes("(")))
    shown = shown.slice(0, -1);
  const address = safeAddress(shown);
  return address && {size: closed ? bare[0].length : shown.length + (bare[0].startsWith("<") ? 1 : 0),
                     nodes: [linkNode(address, shown)]};
}

// Where the code that these backticks begin ends, or -1.
function codeEnd(text, from, n) {
  const ticks = /`+/g;
  ticks.lastIndex = from;
  for (let m; (m = ticks.exec(text));)
    if (m[0].length === n)
      return m.index;
  return -1;
}

function runLength(text, at) {
  let n = 1;
  while (text[at + n] === text[at])
    n++;
  return n;
}

class InlineWriter {
  constructor(parent) {
    this.open = [{mark: "", node: parent}]; // the innermost is last
    this.plain = "";
  }

  add(...nodes) {
    const {node} = this.open.at(-1);
    if (this.plain)
      node.append(this.plain);
    this.plain = "";
    node.append(...nodes);
  }

  // A mark that nothing closes is only a sign.
  drop() {
    this.add();
    const {mark, node} = this.open.pop();
    this.add(mark, ...node.childNodes);
  }

  close(i) {
    while (this.open.length - 1 > i)
      this.drop();
    this.add();
    this.add(this.open.pop().node);
  }

  emphasize(c, n, opens, closes) {
    while (n > 0 && closes) {
      const i = this.open.findLastIndex(({mark}) => mark[0] === c && mark.length <= n);
      if (i < 1)
        break;
      n -= this.open[i].mark.length;
      this.close(i);
    }
    while (n > 0) {
      const mark = n > 1 ? c + c : c;
      n -= mark.length;
      if (!opens || !EMPHASIS[mark] || this.open.length > MAX_NESTED) {
        this.plain += mark;
        continue;
      }
      this.add();
      this.open.push({mark, node: element(EMPHASIS[mark])});
    }
  }

  end() {
    while (this.open.length > 1)
      this.drop();
    this.add();
  }
}

function writeInline(parent, text) {
  const to = new InlineWriter(parent), unclosed = new Set(); // lengths of backticks that nothing closes
  if (text.length > MAX_STYLED) {
    parent.append(text);
    return;
  }
  for (let at = 0; at < text.length;) {
    const c = text[at], next = text[at + 1] || "";
    if (c === "\\" && PUNCTUATION.test(next)) {
      to.plain += next;
      at += 2;
    } else if (c === "`") {
      const n = runLength(text, at), end = unclosed.has(n) ? -1 : codeEnd(text, at + n, n);
      if (end < 0) {
        unclosed.add(n);
        to.plain += text.slice(at, at + n);
        at += n;
      } else {
        const code = text.slice(at + n, end);
        to.add(element("code", "", /^ .*\S.* $/s.test(code) ? code.slice(1, -1) : code));
        at = end + n;
      }
    } else if ("*_~".includes(c)) {
      const n = runLength(text, at), before = text[at - 1] || " ", after = text[at + n] || " ";
      const within = c === "_" && WORD.test(before) && WORD.test(after);
      to.emphasize(c, n, !within && /\S/.test(after), !within && /\S/.test(before));
      at += n;
    } else {
      const link = "![<h".includes(c) && linkAt(text, at);
      if (link)
        to.add(...link.nodes);
      else
        to.plain += c;
      at += link ? link.size : 1;
    }
  }
  to.end();
}

/* Blocks. Each item of a list and each row of a table is one of its own, so that long ones grow cheaply. */

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,5})([-*+]|\d{1,9}[.)])(?=[ \t]|$)/;

function indentOf(line) {
  return /^[ \t]*/.exec(line)[0].replaceAll("\t", "    ").length;
}

function withoutIndent(line, n) {
  return line.replace(/^[ \t]+/, s => s.replaceAll("\t", "    ")).slice(Math.min(n, indentOf(line)));
}

function cellsOf(line) {
  const cells = line.trim().split(/(?<!\\)\|/);
  if (cells.length > 1 && !cells[0].trim())
    cells.shift();
  if (cells.length > 1 && !cells.at(-1).trim())
    cells.pop();
  return cells.map(cell => cell.trim().replaceAll("\\|", "|"));
}

function isTable(lines, i) {
  const below = lines[i + 1];
  if (!lines[i].includes("|") || below === undefined || !below.includes("-") || !below.includes("|") ||
      !/^[\s|:-]+$/.test(below))
    return false;
  const rule = cellsOf(below);
  return rule.length <= MAX_COLUMNS && rule.length === cellsOf(lines[i]).length && rule.every(c => /^:?-+:?$/.test(c));
}

// What begins on this line. `before` is what ended above it.
function kindAt(lines, i, before) {
  const line = lines[i];
  if (!line.trim())
    return "blank";
  if (FENCE.test(line))
    return "fence";
  if (HEADING.test(line))
    return "heading";
  if (/^ {0,3}[-*_]/.test(line) && /^(-{3,}|\*{3,}|_{3,})$/.test(line.replace(/\s/g, "")))
    return "rule";
  if (QUOTE.test(line))
    return "quote";
  if (ITEM.test(line))
    return "item";
  if (line.includes("|") && (before === "table" || before === "row"))
    return "row";
  return isTable(lines, i) ? "table" : "paragraph";
}

// The line behind an item: what is indented belongs to it, and a line that only goes on.
function itemEnd(lines, i) {
  const indent = indentOf(lines[i]) + 2;
  let blank = false;
  for (i++; i < lines.length; i++) {
    if (!lines[i].trim()) {
      blank = true;
      continue;
    }
    if (indentOf(lines[i]) < indent && (blank || kindAt(lines, i, "item") !== "paragraph"))
      break;
    blank = false;
  }
  return i;
}

// The block that begins on this line: {kind, to}; to is the line behind it.
function blockAt(lines, i, before) {
  const kind = kindAt(lines, i, before);
  let to = i + 1;
  if (kind === "fence") {
    const mark = FENCE.exec(lines[i])[1];
    while (to < lines.length && !(lines[to].trim().startsWith(mark) && !lines[to].trim().replaceAll(mark[0], "")))
      to++;
    return {kind, to: Math.min(to + 1, lines.length), closed: to < lines.length, textTo: to};
  }
  if (kind === "table")
    to++;
  else if (kind === "item")
    to = itemEnd(lines, i);
  else if (kind === "quote")
    while (to < lines.length && QUOTE.test(lines[to]))
      to++;
  else if (kind === "paragraph")
    for (let size = lines[i].length; to < lines.length && size < MAX_JOINED; size += lines[to++].length)
      if (kindAt(lines, to, "paragraph") !== "paragraph" &&
          !/^ {0,5}(?!1[.)])\d{1,9}[.)]/.test(lines[to])) // a year at the begin of a line is no list
        break;
  return {kind, to};
}

function codeBlock(language, text) {
  const pre = element("pre", "", element("code", "", text)), copy = element("button", "copy", "Copy");
  copy.type = "button";
  pre.tabIndex = 0; // it can be scrolled by keys
  return element("div", "code", element("div", "bar", element("span", "", language), copy), pre);
}

function tableRow(tag, cells, sides) {
  return element("tr", "", ...sides.map((side, i) => {
    const cell = element(tag, side);
    writeInline(cell, cells[i] || "");
    return cell;
  }));
}

function tableNode(lines, i) {
  const table = element("table"), body = element("tbody");
  table.sides = cellsOf(lines[i + 1]).map(c => c.endsWith(":") ? (c.startsWith(":") ? "center" : "right") : "");
  table.append(element("thead", "", tableRow("th", cellsOf(lines[i]), table.sides)), body);
  return element("div", "table", table);
}

function itemNode(parent, lines, i, to, depth) {
  const [head, , mark] = ITEM.exec(lines[i]), tag = /\d/.test(mark) ? "OL" : "UL", indent = head.length + 1;
  const item = element("li"), inner = [lines[i].slice(head.length).replace(/^ /, "")];
  for (let j = i + 1; j < to; j++)
    inner.push(withoutIndent(lines[j], indent));
  writeBlocks(item, inner, depth + 1);
  let list = parent.lastElementChild;
  if (list && list.tagName === tag) {
    list.append(item);
    return item;
  }
  list = element(tag, "", item);
  if (tag === "OL")
    list.start = parseInt(mark, 10);
  return list;
}

function headingNode(line) {
  const level = HEADING.exec(line)[1].length, node = element("h" + Math.min(level + 2, 6), "h" + level);
  writeInline(node, line.trim().slice(level).trim().replace(/ #{1,6}$/, ""));
  return node;
}

// Appends one block and returns the node that is new, if one is.
function writeBlock(parent, lines, i, block, depth) {
  const last = parent.lastElementChild;
  let node;
  if (block.kind === "blank")
    return null;
  if (block.kind === "fence")
    node = codeBlock(FENCE.exec(lines[i])[2].trim().slice(0, 40), lines.slice(i + 1, block.textTo).join("\n"));
  else if (block.kind === "heading")
    node = headingNode(lines[i]);
  else if (block.kind === "rule")
    node = element("hr");
  else if (block.kind === "quote" && depth < MAX_NESTED)
    writeBlocks(node = element("blockquote"), lines.slice(i, block.to).map(l => l.replace(QUOTE, "")), depth + 1);
  else if (block.kind === "table")
    node = tableNode(lines, i);
  else if (block.kind === "row" && last && last.className === "table") {
    node = tableRow("td", cellsOf(lines[i]), last.firstChild.sides);
    last.firstChild.lastChild.append(node);
    return node;
  } else if (block.kind === "item" && depth < MAX_NESTED)
    node = itemNode(parent, lines, i, block.to, depth);
  else
    writeInline(node = element("p"), lines.slice(i, block.to).join("\n").trimEnd());
  if (!node.parentNode) { // else it has gone into the list or table above
    node.dir = "auto";
    parent.append(node);
  }
  return node;
}

function writeBlocks(parent, lines, depth) {
  for (let i = 0, before = ""; i < lines.length;) {
    const block = blockAt(lines, i, before);
    writeBlock(parent, lines, i, block, depth);
    before = block.kind;
    i = block.to;
  }
}

// A text that grows. What stands before `done` is finished: a block ends for good when two lines behind it are whole,
// since two lines tell a table from a paragraph.
class MarkdownText {
  constructor(parent) {
    this.parent = parent;
    this.done = 0;
    this.before = "";
    this.tail = []; // nodes of what is not finished
    this.code = null; // the open block of code, where that is all of the tail
  }

  show(source) {
    const lines = source.slice(this.done).split("\n"), first = blockAt(lines, 0, this.before);
    if (this.code && first.kind === "fence" && !first.closed && this.grow(lines))
      return;
    this.tail.forEach(node => node.remove());
    this.tail = [];
    this.code = null;
    for (let i = 0, block = first, finished = true; i < lines.length;) {
      const node = writeBlock(this.parent, lines, i, block, 0);
      finished = finished && block.to + 1 < lines.length - 1;
      if (finished) {
        this.done += source.slice(this.done).split("\n", block.to - i).join("\n").length + 1;
        this.before = block.kind;
      } else if (node)
        this.tail.push(node);
      if (!finished && block.kind === "fence" && !block.closed && this.tail.length === 1 && block.to - i > 1)
        this.code = node.querySelector("code");
      i = block.to;
      if (i < lines.length)
        block = blockAt(lines, i, block.kind);
    }
  }

  // Adds to the open block of code. False: its end is not as it was.
  grow(lines) {
    const text = lines.slice(1).join("\n"), node = this.code.firstChild;
    if (!node || text.length < node.length || !text.startsWith(node.data))
      return false;
    node.appendData(text.slice(node.length));
    return true;
  }
}

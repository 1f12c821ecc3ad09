#!/usr/bin/python3
"""How fluent the chat page stays: conversations are kept in the browser, one of them is on the screen, and an answer
streams in. Prints the gaps between frames, the tasks that kept the browser's thread for over 50 ms, and how long the
list, a search and opening a conversation took. TANDEM_BIN names the build's bin."""
import argparse
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from http_test import FakeDaemon, Gateway  # noqa: E402
from page_browser import Browser  # noqa: E402

FILL = """return (async ([n, m]) => {
  const said = ['## Part\\n\\nSome **bold** words, a `name`, [a link](https://example.org/).\\n\\n- one\\n- two\\n\\n',
    '```py\\nfor i in range(3):\\n    print(i)\\n```\\n\\n', '| a | b |\\n|---|---|\\n| 1 | 2 |\\n\\n',
    'Words. '.repeat(60)];
  for (let i = 0; i < n; i++) {
    const turns = [];
    for (let j = 0; j < m / 2; j++)
      turns.push({user: 'Question ' + j + ' of ' + i, said: said[j % 4] + said[(j + 1) % 4], thought: '', calls: [],
                  note: '100 tokens', model: 'tale', at: 0});
    await keepChat({id: 'c' + i, title: 'Conversation ' + i, changed: i, turns});
  }
})(arguments[0])"""
TIMED = """return (async () => {
  const times = {}, timed = async (name, act) => {
    const begin = performance.now();
    await act();
    await new Promise(requestAnimationFrame);
    await new Promise(wake => setTimeout(wake, 0));
    times[name] = performance.now() - begin;
  };
  await timed('list', showList);
  $('find').value = 'nowhere in them';
  await timed('search that finds nothing', showList);
  $('find').value = '';
  await showList();
  await timed('open', () => openChat('c0'));
  return times;
})()"""
# An answer of `seconds` at `rate` tokens a second, which arrive as a network brings them: what is due, at once.
STREAM = """return (async ([rate, seconds, text]) => {
  const encoder = new TextEncoder(), gaps = [], tasks = [];
  const event = (delta, finish_reason = null) =>
    encoder.encode('data: ' + JSON.stringify({choices: [{delta, finish_reason}]}) + '\\n\\n');
  window.fetch = async (path, o) => !o.body ? Response.json({data: [{id: 'tale'}]}) : new Response(new ReadableStream({
    async start(controller) {
      const begin = performance.now(), words = text.match(/\\s*\\S+|\\s+$/g);
      for (let n = 0; n < rate * seconds;) {
        for (; n < (performance.now() - begin) / 1000 * rate; n++)
          controller.enqueue(event({content: words[n % words.length]}));
        await new Promise(wake => setTimeout(wake, 5));
      }
      controller.enqueue(event({}, 'stop'));
      controller.close();
    }}));
  await listModels();
  new PerformanceObserver(list => list.getEntries().forEach(e => tasks.push(e.duration))).observe({type: 'longtask'});
  let last = performance.now(), on = true;
  requestAnimationFrame(function frame() {
    const now = performance.now();
    gaps.push(now - last);
    last = now;
    if (on)
      requestAnimationFrame(frame);
  });
  await ask('Go on');
  on = false;
  return {gaps: gaps.slice(1), tasks, blocks: document.querySelectorAll('.turn:last-of-type .answer > *').length};
})(arguments[0])"""
TEXTS = {
    "Markdown": "## A part\n\nSome **bold** words and `code` in a paragraph that goes on for a while.\n\n- one\n- two "
                "with more\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```py\nfor i in range(3):\n    print(i)\n```\n\n",
    "one block of code": "```\n" + "some line of code that is long enough;\n" * 4000,
    "one paragraph": "word **bold** `code` and more " * 4000,
    "one list": "- item with **bold** words\n" * 4000,
    "one table": "| a | b |\n|---|---|\n" + "| one `x` | two words |\n" * 4000,
}


def at(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--conversations", type=int, default=100)
parser.add_argument("--messages", type=int, default=200, help="of each conversation")
parser.add_argument("--rate", type=int, default=300, help="tokens a second")
parser.add_argument("--seconds", type=int, default=10, help="of each answer")
options = parser.parse_args()
with FakeDaemon([]) as d, Gateway(d) as g, Browser(d.dir) as b:
    b.open(g, watched=False)
    b.run(FILL, [options.conversations, options.messages])
    print(f"{options.conversations} conversations of {options.messages} messages; "
          f"{options.rate} tokens a second for {options.seconds} s")
    for name, ms in b.run(TIMED).items():
        print(f"{name}: {ms:.0f} ms")
    for name, text in TEXTS.items():
        r = b.run(STREAM, [options.rate, options.seconds, text])
        print(f"{name}: {len(r['gaps'])} frames; gap p50 {at(r['gaps'], .5):.0f}, p99 {at(r['gaps'], .99):.0f}, "
              f"most {max(r['gaps']):.0f} ms; tasks over 50 ms: {[round(t) for t in r['tasks']]}", flush=True)

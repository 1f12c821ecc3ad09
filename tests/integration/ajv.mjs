// Reads rows {"schema", "text", "ended"} and answers for each text that ended whether ajv takes it.
//
//   node ajv.mjs NODE_MODULES < rows > answers
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import path from "node:path";

const require = createRequire(path.join(path.resolve(process.argv[2]), "any.js"));
const Ajv = require("ajv/dist/2020").default;
const addFormats = require("ajv-formats").default;

let n = 0;
for await (const line of createInterface({ input: process.stdin })) {
  const row = n++;
  const { schema, text, ended } = JSON.parse(line);
  if (!ended)
    continue;
  // Decimals: 0.3 is a multiple of 0.1, though doubles say no.
  const ajv = addFormats(new Ajv({ strict: false, allErrors: true, multipleOfPrecision: 9 }));
  // ajv's notes on what was evaluated make its own code fail on some schemas. The schemas here have no unevaluated….
  ajv.opts.unevaluated = false;
  let valid = false, why;
  try {
    const check = ajv.compile(schema);
    valid = check(JSON.parse(text));
    why = check.errors;
  } catch (e) {
    why = String(e);
  }
  console.log(JSON.stringify({ row, valid, why }));
}

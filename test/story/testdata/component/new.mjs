// SPDX-License-Identifier: Apache-2.0

// Makes a component of a core module, by the Bytecode Alliance's tools.
// Usage: node new.mjs TOOLS command|reactor MODULE COMPONENT [WIT]
import { readFile, writeFile } from 'node:fs/promises';
import { pathToFileURL } from 'node:url';

const [tools, adapter, module, component, wit] = process.argv.slice(2);
const packages = `${tools}/node_modules/@bytecodealliance`;
const { $init, tools: wasm } = await import(pathToFileURL(`${packages}/jco-transpile/vendor/wasm-tools.js`));
await $init;
let binary = await readFile(module);
if (wit) binary = wasm.componentEmbed({ binary, witSource: await readFile(wit, 'utf8') });
const preview1 = await readFile(`${packages}/jco/lib/wasi_snapshot_preview1.${adapter}.wasm`);
await writeFile(component, wasm.componentNew(binary, [['wasi_snapshot_preview1', preview1]]));

// SPDX-License-Identifier: Apache-2.0

// Makes a component of a core module, by the Bytecode Alliance's tools: for a world, with the interfaces of WASI 0.2.12.
// Usage: node component.mjs TOOLS MODULE WIT COMPONENT
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { pathToFileURL } from 'node:url';

const [tools, module, wit, component] = process.argv.slice(2);
const packages = `${tools}/node_modules/@bytecodealliance`;
const { $init, tools: wasm } = await import(pathToFileURL(`${packages}/jco-transpile/vendor/wasm-tools.js`));
await $init;
const interfaces = `${packages}/jco/lib/wit/builtin/0.2.12`;
let witSource = await readFile(wit, 'utf8');
for (const name of await readdir(interfaces)) // as packages of one document
  witSource += (await readFile(`${interfaces}/${name}/package.wit`, 'utf8')).replace(/^package ([^;]*);/, '\npackage $1 {') + '\n}\n';
const binary = wasm.componentEmbed({ binary: await readFile(module), witSource });
await writeFile(component, wasm.componentNew(binary, []));

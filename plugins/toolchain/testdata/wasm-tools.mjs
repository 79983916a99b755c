// SPDX-License-Identifier: Apache-2.0

// Asks the Bytecode Alliance's tools, which know nothing of wasmplane.
// Usage: node wasm-tools.mjs TOOLS wit COMPONENT         prints a component's world
//        node wasm-tools.mjs TOOLS run COMPONENT FOLDER  validates it, runs it on another host, and prints what it
//                                                        describes and, where it validates, what it decides of "a" and "b",
//                                                        where it has one function for all, what it answers operations 2 and 77
//        node wasm-tools.mjs TOOLS world WORLD WIT...    writes an empty module with a world, as generators of bindings do
//        node wasm-tools.mjs TOOLS embed MODULE WORLD WIT...   the same with a module
import { readFile, writeFile } from 'node:fs/promises';
import { pathToFileURL } from 'node:url';

const [tools, command, ...args] = process.argv.slice(2);
const vendor = pathToFileURL(`${tools}/node_modules/@bytecodealliance/jco-transpile/vendor/`);
const { $init, tools: wasm } = await import(new URL('wasm-tools.js', vendor));
await $init;

async function run(component, folder) {
  const { $init: ready, generate } = await import(new URL('js-component-bindgen-component.js', vendor));
  await ready;
  const { files } = generate(component, { name: 'plugin', instantiation: { tag: 'async' }, noTypescript: true });
  for (const [name, content] of files) await writeFile(`${folder}/${name.replace(/\.js$/, '.mjs')}`, content);
  const { instantiate } = await import(pathToFileURL(`${folder}/plugin.mjs`));
  const { WASIShim } = await import(pathToFileURL(`${tools}/node_modules/@bytecodealliance/preview2-shim/dist/common/instantiation.js`));
  const plugin = await instantiate(async (name) => WebAssembly.compile(await readFile(`${folder}/${name}`)), {
    ...new WASIShim().getImportObject(),
    'wasmplane:plugin/host': { call: (operation, input) => {
      if (operation !== 'log') throw { tag: 'refused', val: `no ${operation} here` };
      console.log(`log ${new TextDecoder().decode(input)}`);
      return new Uint8Array();
    } },
  });
  const answer = (operation) => {
    try {
      return new TextDecoder().decode(plugin.call(operation, new Uint8Array(8))); // null, in the flat encoding
    } catch (e) {
      return `error: ${e.payload}`;
    }
  };
  const decisions = plugin.validate ? ['a', 'b'].map((document) => JSON.stringify(plugin.validate(document))) : [];
  const answers = plugin.call ? [2, 77].map(answer) : [];
  return [plugin.describe(), ...decisions, ...answers].join('\n');
}

if (command === 'wit') {
  console.log(wasm.componentWit(await readFile(args[0])));
} else if (command === 'run') {
  console.log(await run(await readFile(args[0]), args[1]));
  process.exit(); // the host's threads would wait
} else {
  const binary = command === 'embed' ? await readFile(args.shift()) : undefined;
  const texts = await Promise.all(args.slice(1).map((file) => readFile(file, 'utf8')));
  process.stdout.write(wasm.componentEmbed({ binary, dummy: !binary, witSource: texts.join(''), world: args[0] }));
}

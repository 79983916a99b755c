// SPDX-License-Identifier: Apache-2.0

// Package story tells what users see, on the real binary as processes of its own:
// scripts in testdata that read like a terminal, and Go where a script cannot say
// it. Each script has a cluster, a data directory and a port to itself, and after
// each nothing of it may be left on the host.
//
// The scripts run as root, since most have a real node. WASMPLANE_BIN names a
// binary to tell them on; by default it is the one that `make build` makes.
//
// Two stories run on each processor at a time, as each waits for a part of its time; `go test -parallel 1` runs them one by one.
//
// $EXAMPLES is the folder of the examples, $WASM that of their modules.
//
// Commands beside those of testscript:
//
//	up [--as-nobody] [FLAGS]      start `wasmplane up` and wait until it is ready
//	! up [FLAGS]                  it must refuse; see stderr
//	start NAME 'READY' PROGRAM... start a process, wait for a line that matches READY;
//	                              named groups of READY become variables
//	release [-broken] VERSION FILE  this tree built as that version; -broken: one that does not work
//	former FILE                   a former release, as v0.3.0: that of WASMPLANE_FORMER, or this tree
//	objects BUCKET KEY SECRET CA  start an object store; OBJECTS is where it is
//	page FILE 'HEADING' [N] MACHINE=NAME...  do what a part of a page of docs says, or its Nth block,
//	                              on the machines that it names
//	crash NAME                    kill -9, and wait for the end
//	interrupt NAME                Ctrl-C, and wait for the end
//	kubectl ARGS, wasmplane ARGS  the binary's own
//	apply FILE                    kubectl apply, with $VARIABLES of FILE filled in
//	fill FILE                     fill in $VARIABLES
//	replace OLD NEW FILE          edit a file, as editors save it
//	assemble FILE.wat FILE.wasm   make a Wasm module of its text
//	components COMMAND SERVER     make components, by others' tools, of testdata/module and testdata/component
//	await-trace 'PATTERN' ARGS    wasmplane trace ARGS until it shows PATTERN
//	follow 'CAUSE' 'COMMAND' ARGS wasmplane why ARGS until its first line matches CAUSE; then do the
//	                              first thing that it suggests and that matches COMMAND
//	                              (-WORD=VALUE: fill in a word that it leaves open)
//	env-from-stdout NAME          what was printed becomes a variable
//	containers N                  wait until the node runs N containers (and their sandboxes)
//	await 'PATTERN' ARGS          run kubectl ARGS until what it prints matches (-count=N: N times);
//	                              ! until it doesn't
//	await-http 'PATTERN' URL      fetch until the answer matches
//	await-log 'PATTERN'           until the log of `up`, or what NAME prints, matches
//	down                          `wasmplane down --purge`, after which the host is clean
//	                              (checked again at the end of every script)
package story

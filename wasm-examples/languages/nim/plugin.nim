# SPDX-License-Identifier: Apache-2.0

# A plugin in Nim, from sdk/spec alone: it refuses pods without the label owner.
import std/json

const manifest = """{"abi":1,"name":"owners","version":"1.0.0","hooks":[{"op":2,"point":"admission.validate",
  "match":[{"operations":["CREATE"],"apiGroups":[""],"apiVersions":["v1"],"resources":["pods"]}],
  "fields":["object.metadata.labels.owner"]}]}"""

var input, output: string

proc answer(text: string): int64 =
  output = text
  (cast[int64](cast[uint32](output.cstring)) shl 32) or output.len.int64

proc NimMain() {.importc.}
proc initialize() {.exportc, codegenDecl: "__attribute__((constructor)) $# $#$#".} = NimMain()

proc describe(): int64 {.exportc, codegenDecl: "__attribute__((export_name(\"describe\"))) $# $#$#".} = answer(manifest)

proc alloc(length: int32): pointer {.exportc, codegenDecl: "__attribute__((export_name(\"alloc\"))) $# $#$#".} =
  input = newString(length)
  input.cstring

proc call(op: int32, at: pointer, length: int32): int64 {.exportc, codegenDecl: "__attribute__((export_name(\"call\"))) $# $#$#".} =
  let labels = parseJson(input){"object", "metadata", "labels"}
  if labels != nil and labels{"owner"}.getStr != "": return 0
  answer($ %*{"allowed": false, "message": "name an owner", "field": "metadata.labels.owner"})

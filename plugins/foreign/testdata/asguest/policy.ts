// A Kubewarden policy on the waPC SDK that its authors publish for AssemblyScript,
// @wapc/as-guest: it refuses pods of a team (a label of their namespace) that the settings close.
import { register, handleCall, handleAbort, hostCall, consoleLog, Result } from "@wapc/as-guest";

function answer(json: string): Result<ArrayBuffer> { return Result.ok(String.UTF8.encode(json)); }

register("protocol_version", (_: ArrayBuffer): Result<ArrayBuffer> => answer('"v1"'));

register("validate_settings", (payload: ArrayBuffer): Result<ArrayBuffer> => {
  const named = String.UTF8.decode(payload).includes('"closed"');
  return answer(named ? '{"valid":true}' : '{"valid":false,"message":"closed is missing: the name of a team"}');
});

register("validate", (payload: ArrayBuffer): Result<ArrayBuffer> => {
  const question = '{"api_version":"v1","kind":"Namespace","name":"default","disable_cache":false}';
  const namespace = hostCall("kubewarden", "kubernetes", "get_resource", String.UTF8.encode(question));
  if (!namespace.isOk) return Result.error<ArrayBuffer>(namespace.error()!);
  consoleLog("asked about the namespace");
  const labels = String.UTF8.decode(namespace.get()), text = String.UTF8.decode(payload);
  const at = text.indexOf('"closed":"') + 10;
  const team = text.substring(at, text.indexOf('"', at));
  if (team == "panic") throw new Error("out of cheese");
  if (labels.includes('"team":"' + team + '"')) return answer('{"accepted":false,"message":"team ' + team + ' is closed","code":423}');
  return answer('{"accepted":true,"warnings":["team ' + team + ' is closed"]}');
});

export function __guest_call(operation: usize, payload: usize): bool { return handleCall(operation, payload); }

export function abort(message: string | null, file: string | null, line: u32, column: u32): void { handleAbort(message, file, line, column); }

;; The import wasmplane.call of sdk/spec, made of the world's host function: call(operation: string, input: list<u8>) ->
;; result<list<u8>, call-error>. The last reply stays in memory, for who asks for it again.
(global $reply (mut i32) (i32.const 0))
(global $length (mut i32) (i32.const 0))

(func (export "call")
  (param $op i32) (param $op-length i32) (param $in i32) (param $in-length i32) (param $out i32) (param $capacity i32) (result i64)
  (local $operation i32) (local $input i32) (local $failed i64)
  (if (local.get $op-length) (then
    (call $forget)
    (local.set $operation (call $room (i32.const 1) (local.get $op-length)))
    (call $fetch (local.get $operation) (local.get $op) (local.get $op-length))
    (local.set $input (call $room (i32.const 1) (local.get $in-length)))
    (call $fetch (local.get $input) (local.get $in) (local.get $in-length))
    (call $host (local.get $operation) (local.get $op-length) (local.get $input) (local.get $in-length) (i32.const 16))
    (if (i32.load8_u (i32.const 16))
      (then ;; refused is -1, failed is -2
        (local.set $failed (i64.sub (i64.const -1) (i64.load8_u (i32.const 20))))
        (global.set $reply (i32.load (i32.const 24)))
        (global.set $length (i32.load (i32.const 28))))
      (else
        (global.set $reply (i32.load (i32.const 20)))
        (global.set $length (i32.load (i32.const 24)))))))
  (if (i32.le_u (global.get $length) (local.get $capacity))
    (then (call $put (local.get $out) (global.get $reply) (global.get $length))))
  (select (local.get $failed) (i64.extend_i32_u (global.get $length)) (i64.ne (local.get $failed) (i64.const 0))))

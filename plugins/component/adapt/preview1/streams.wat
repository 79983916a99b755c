;; Standard output and error: taken when they are first written to, and kept.
(global $out (mut i32) (i32.const -1))
(global $err (mut i32) (i32.const -1))
(func $stream (param $fd i32) (result i32)
  (if (i32.eq (local.get $fd) (i32.const 1)) (then
    (if (i32.eq (global.get $out) (i32.const -1)) (then (global.set $out (call $get-stdout))))
    (return (global.get $out))))
  (if (i32.eq (global.get $err) (i32.const -1)) (then (global.set $err (call $get-stderr))))
  (global.get $err))

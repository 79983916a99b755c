;; Writes bytes that stand at 4096 to a stream, and answers an error number: io where it failed, pipe where it is closed.
(func $flush (param $stream i32) (param $n i32) (result i32)
  (call $write (local.get $stream) (i32.const 4096) (local.get $n) (i32.const 16))
  (if (i32.eqz (i32.load8_u (i32.const 16))) (then (return (i32.const 0))))
  (if (i32.load8_u (i32.const 20)) (then (return (i32.const 64))))
  (call $drop-error (i32.load (i32.const 24)))
  (i32.const 29))

;; Nanoseconds of a datetime that stands at 16.
(func $nanoseconds (result i64)
  (i64.add (i64.mul (i64.load (i32.const 16)) (i64.const 1000000000)) (i64.load32_u (i32.const 24))))

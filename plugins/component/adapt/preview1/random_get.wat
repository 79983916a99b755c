(func (export "random_get") (param $to i32) (param $n i32) (result i32)
  (local $part i32)
  (block $end
    (loop $each
      (br_if $end (i32.eqz (local.get $n)))
      (local.set $part (select (i32.const 4096) (local.get $n) (i32.lt_u (i32.const 4096) (local.get $n))))
      (call $forget)
      (call $get-random-bytes (i64.extend_i32_u (local.get $part)) (i32.const 16))
      (if (i32.ne (i32.load (i32.const 20)) (local.get $part)) (then (unreachable)))
      (call $put (local.get $to) (i32.load (i32.const 16)) (local.get $part))
      (local.set $to (i32.add (local.get $to) (local.get $part)))
      (local.set $n (i32.sub (local.get $n) (local.get $part)))
      (br $each)))
  (i32.const 0))

(func (export "environ_sizes_get") (param $count i32) (param $bytes i32) (result i32)
  (local $at i32) (local $n i32) (local $sum i32)
  (call $forget)
  (call $get-environment (i32.const 16))
  (local.set $at (i32.load (i32.const 16)))
  (local.set $n (i32.load (i32.const 20)))
  (call $store32 (local.get $count) (local.get $n))
  (block $end
    (loop $each
      (br_if $end (i32.eqz (local.get $n)))
      (local.set $sum (i32.add (local.get $sum) (i32.add (i32.const 2) ;; = and the zero
        (i32.add (i32.load offset=4 (local.get $at)) (i32.load offset=12 (local.get $at))))))
      (local.set $at (i32.add (local.get $at) (i32.const 16)))
      (local.set $n (i32.sub (local.get $n) (i32.const 1)))
      (br $each)))
  (call $store32 (local.get $bytes) (local.get $sum))
  (i32.const 0))

(func (export "environ_get") (param $list i32) (param $to i32) (result i32)
  (local $at i32) (local $n i32)
  (call $forget)
  (call $get-environment (i32.const 16))
  (local.set $at (i32.load (i32.const 16)))
  (local.set $n (i32.load (i32.const 20)))
  (block $end
    (loop $each
      (br_if $end (i32.eqz (local.get $n)))
      (call $store32 (local.get $list) (local.get $to))
      (local.set $to (call $zero-ended (local.get $to) (i32.load (local.get $at)) (i32.load offset=4 (local.get $at))))
      (call $store8 (i32.sub (local.get $to) (i32.const 1)) (i32.const 61)) ;; = instead of the zero
      (local.set $to (call $zero-ended (local.get $to) (i32.load offset=8 (local.get $at)) (i32.load offset=12 (local.get $at))))
      (local.set $list (i32.add (local.get $list) (i32.const 4)))
      (local.set $at (i32.add (local.get $at) (i32.const 16)))
      (local.set $n (i32.sub (local.get $n) (i32.const 1)))
      (br $each)))
  (i32.const 0))

(func (export "clock_res_get") (param $id i32) (param $resolution i32) (result i32)
  (if (i32.gt_u (local.get $id) (i32.const 1)) (then (return (i32.const 58))))
  (if (local.get $id)
    (then (call $store64 (local.get $resolution) (call $resolution)))
    (else
      (call $wall-resolution (i32.const 16))
      (call $store64 (local.get $resolution) (call $nanoseconds))))
  (i32.const 0))

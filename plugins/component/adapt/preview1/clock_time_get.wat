(func (export "clock_time_get") (param $id i32) (param $precision i64) (param $time i32) (result i32)
  (if (i32.gt_u (local.get $id) (i32.const 1)) (then (return (i32.const 58)))) ;; notsup: the processor's time is nobody's business
  (if (local.get $id)
    (then (call $store64 (local.get $time) (call $now)))
    (else
      (call $wall-now (i32.const 16))
      (call $store64 (local.get $time) (call $nanoseconds))))
  (i32.const 0))

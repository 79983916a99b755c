;; 0, 1 and 2 are character devices, and may be written to as far as anybody knows before he tries.
(func (export "fd_fdstat_get") (param $fd i32) (param $stat i32) (result i32)
  (if (i32.gt_u (local.get $fd) (i32.const 2)) (then (return (i32.const 8))))
  (call $store64 (local.get $stat) (i64.const 2))
  (call $store64 (i32.add (local.get $stat) (i32.const 8)) (i64.const 64))
  (call $store64 (i32.add (local.get $stat) (i32.const 16)) (i64.const 0))
  (i32.const 0))

(func (export "fd_write") (param $fd i32) (param $vectors i32) (param $n i32) (param $written i32) (result i32)
  (local $at i32) (local $left i32) (local $part i32) (local $held i32) (local $total i32) (local $errno i32)
  (if (i32.gt_u (i32.sub (local.get $fd) (i32.const 1)) (i32.const 1)) (then (return (i32.const 8)))) ;; badf
  (if (i32.gt_u (local.get $n) (i32.const 1024)) (then (return (i32.const 28)))) ;; inval
  (block $end
    (loop $vector
      (if (i32.eqz (local.get $left)) (then
        (br_if $end (i32.eqz (local.get $n)))
        (local.set $at (call $load32 (local.get $vectors)))
        (local.set $left (call $load32 (i32.add (local.get $vectors) (i32.const 4))))
        (local.set $vectors (i32.add (local.get $vectors) (i32.const 8)))
        (local.set $n (i32.sub (local.get $n) (i32.const 1)))
        (br $vector)))
      (local.set $part (i32.sub (i32.const 4096) (local.get $held)))
      (local.set $part (select (local.get $part) (local.get $left) (i32.lt_u (local.get $part) (local.get $left))))
      (call $fetch (i32.add (i32.const 4096) (local.get $held)) (local.get $at) (local.get $part))
      (local.set $held (i32.add (local.get $held) (local.get $part)))
      (local.set $at (i32.add (local.get $at) (local.get $part)))
      (local.set $left (i32.sub (local.get $left) (local.get $part)))
      (br_if $vector (i32.lt_u (local.get $held) (i32.const 4096)))
      (local.set $errno (call $flush (call $stream (local.get $fd)) (i32.const 4096)))
      (br_if $end (local.get $errno))
      (local.set $total (i32.add (local.get $total) (i32.const 4096)))
      (local.set $held (i32.const 0))
      (br $vector)))
  (if (i32.and (i32.eqz (local.get $errno)) (i32.ne (local.get $held) (i32.const 0))) (then
    (local.set $errno (call $flush (call $stream (local.get $fd)) (local.get $held)))
    (if (i32.eqz (local.get $errno)) (then (local.set $total (i32.add (local.get $total) (local.get $held)))))))
  ;; What was written before an error counts.
  (if (i32.and (i32.eqz (local.get $total)) (i32.ne (local.get $errno) (i32.const 0))) (then (return (local.get $errno))))
  (call $store32 (local.get $written) (local.get $total))
  (i32.const 0))

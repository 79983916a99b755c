;; How long a subscription waits: a file not at all, whatever it is; a clock its time, or the time up to its moment.
(func $waits (param $subscription i32) (result i64)
  (local $time i64) (local $now i64)
  (if (call $load8 (i32.add (local.get $subscription) (i32.const 8))) (then (return (i64.const 0))))
  (local.set $time (call $load64 (i32.add (local.get $subscription) (i32.const 24))))
  (if (i32.eqz (i32.and (call $load8 (i32.add (local.get $subscription) (i32.const 40))) (i32.const 1)))
    (then (return (local.get $time))))
  (if (call $load32 (i32.add (local.get $subscription) (i32.const 16)))
    (then (local.set $now (call $now)))
    (else
      (call $wall-now (i32.const 16))
      (local.set $now (call $nanoseconds))))
  (select (i64.sub (local.get $time) (local.get $now)) (i64.const 0) (i64.gt_u (local.get $time) (local.get $now))))

;; The error number of a subscription's event: badf for a file that is none of 0, 1 and 2, notsup for other clocks.
(func $trouble (param $subscription i32) (result i32)
  (local $what i32)
  (local.set $what (call $load32 (i32.add (local.get $subscription) (i32.const 16))))
  (if (call $load8 (i32.add (local.get $subscription) (i32.const 8)))
    (then (return (select (i32.const 8) (i32.const 0) (i32.gt_u (local.get $what) (i32.const 2))))))
  (select (i32.const 58) (i32.const 0) (i32.gt_u (local.get $what) (i32.const 1))))

;; One pollable is enough: only clocks have to be waited for, and the one that is first ends the call.
(func (export "poll_oneoff") (param $in i32) (param $out i32) (param $n i32) (param $count i32) (result i32)
  (local $i i32) (local $at i32) (local $wait i64) (local $least i64) (local $pollable i32) (local $events i32)
  (if (i32.gt_u (i32.sub (local.get $n) (i32.const 1)) (i32.const 63)) (then (return (i32.const 28)))) ;; inval
  (local.set $least (i64.const -1))
  (local.set $at (local.get $in))
  (loop $each
    (local.set $wait (i64.const 0))
    (if (i32.eqz (call $trouble (local.get $at))) (then (local.set $wait (call $waits (local.get $at)))))
    (i64.store (i32.add (i32.const 4096) (i32.shl (local.get $i) (i32.const 3))) (local.get $wait))
    (if (i64.lt_u (local.get $wait) (local.get $least)) (then (local.set $least (local.get $wait))))
    (local.set $at (i32.add (local.get $at) (i32.const 48)))
    (local.set $i (i32.add (local.get $i) (i32.const 1)))
    (br_if $each (i32.lt_u (local.get $i) (local.get $n))))
  (if (i64.ne (local.get $least) (i64.const 0)) (then
    (local.set $pollable (call $subscribe-duration (local.get $least)))
    (call $block (local.get $pollable))
    (call $drop-pollable (local.get $pollable))))
  (local.set $i (i32.const 0))
  (loop $each
    (if (i64.le_u (i64.load (i32.add (i32.const 4096) (i32.shl (local.get $i) (i32.const 3)))) (local.get $least)) (then
      (local.set $at (i32.add (local.get $in) (i32.mul (local.get $i) (i32.const 48))))
      (call $store64 (local.get $out) (call $load64 (local.get $at)))
      (call $store64 (i32.add (local.get $out) (i32.const 8)) (i64.extend_i32_u (i32.or
        (call $trouble (local.get $at))
        (i32.shl (call $load8 (i32.add (local.get $at) (i32.const 8))) (i32.const 16)))))
      (call $store64 (i32.add (local.get $out) (i32.const 16)) (i64.const 0))
      (call $store64 (i32.add (local.get $out) (i32.const 24)) (i64.const 0))
      (local.set $out (i32.add (local.get $out) (i32.const 32)))
      (local.set $events (i32.add (local.get $events) (i32.const 1)))))
    (local.set $i (i32.add (local.get $i) (i32.const 1)))
    (br_if $each (i32.lt_u (local.get $i) (local.get $n))))
  (call $store32 (local.get $count) (local.get $events))
  (i32.const 0))

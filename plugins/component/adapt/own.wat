(import "guest-memory" "load8" (func $load8 (param i32) (result i32)))
(import "guest-memory" "load32" (func $load32 (param i32) (result i32)))
(import "guest-memory" "load64" (func $load64 (param i32) (result i64)))
(import "guest-memory" "store8" (func $store8 (param i32 i32)))
(import "guest-memory" "store32" (func $store32 (param i32 i32)))
(import "guest-memory" "store64" (func $store64 (param i32 i64)))
(memory (export "memory") 1 %d)
(global $free (mut i32) (i32.const 8192))

;; Gives back all that was taken.
(func $forget (global.set $free (i32.const 8192)))

;; Takes bytes; where there are not so many, the call ends with a trap.
(func $room (param $align i32) (param $n i32) (result i32)
  (local $at i32) (local $end i32) (local $pages i32)
  (local.set $at (i32.and
    (i32.add (global.get $free) (i32.sub (local.get $align) (i32.const 1)))
    (i32.sub (i32.const 0) (local.get $align))))
  (local.set $end (i32.add (local.get $at) (local.get $n)))
  (if (i32.or (i32.lt_u (local.get $at) (global.get $free)) (i32.lt_u (local.get $end) (local.get $at))) (then (unreachable)))
  (local.set $pages (i32.sub
    (i32.add (i32.shr_u (local.get $end) (i32.const 16)) (i32.ne (i32.and (local.get $end) (i32.const 0xffff)) (i32.const 0)))
    (memory.size)))
  (if (i32.gt_s (local.get $pages) (i32.const 0))
    (then (if (i32.eq (memory.grow (local.get $pages)) (i32.const -1)) (then (unreachable)))))
  (global.set $free (local.get $end))
  (local.get $at))

;; What the canonical ABI takes memory by.
(func (export "cabi_realloc") (param $old i32) (param $had i32) (param $align i32) (param $n i32) (result i32)
  (local $at i32)
  (local.set $at (call $room (local.get $align) (local.get $n)))
  (memory.copy (local.get $at) (local.get $old)
    (select (local.get $had) (local.get $n) (i32.lt_u (local.get $had) (local.get $n))))
  (local.get $at))

;; Copies from the module's memory.
(func $fetch (param $to i32) (param $from i32) (param $n i32)
  (block $done
    (loop $eight
      (br_if $done (i32.lt_u (local.get $n) (i32.const 8)))
      (i64.store align=1 (local.get $to) (call $load64 (local.get $from)))
      (local.set $to (i32.add (local.get $to) (i32.const 8)))
      (local.set $from (i32.add (local.get $from) (i32.const 8)))
      (local.set $n (i32.sub (local.get $n) (i32.const 8)))
      (br $eight)))
  (block $done
    (loop $one
      (br_if $done (i32.eqz (local.get $n)))
      (i32.store8 (local.get $to) (call $load8 (local.get $from)))
      (local.set $to (i32.add (local.get $to) (i32.const 1)))
      (local.set $from (i32.add (local.get $from) (i32.const 1)))
      (local.set $n (i32.sub (local.get $n) (i32.const 1)))
      (br $one))))

;; Copies to the module's memory.
(func $put (param $to i32) (param $from i32) (param $n i32)
  (block $done
    (loop $eight
      (br_if $done (i32.lt_u (local.get $n) (i32.const 8)))
      (call $store64 (local.get $to) (i64.load align=1 (local.get $from)))
      (local.set $to (i32.add (local.get $to) (i32.const 8)))
      (local.set $from (i32.add (local.get $from) (i32.const 8)))
      (local.set $n (i32.sub (local.get $n) (i32.const 8)))
      (br $eight)))
  (block $done
    (loop $one
      (br_if $done (i32.eqz (local.get $n)))
      (call $store8 (local.get $to) (i32.load8_u (local.get $from)))
      (local.set $to (i32.add (local.get $to) (i32.const 1)))
      (local.set $from (i32.add (local.get $from) (i32.const 1)))
      (local.set $n (i32.sub (local.get $n) (i32.const 1)))
      (br $one))))

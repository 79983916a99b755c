;; The functions of the world "plugin", made of a module's own: describe, alloc and call of sdk/spec.
(import "__main_module__" "alloc" (func $alloc (param i32) (result i32)))
(import "__main_module__" "describe" (func $describe (result i64)))
(import "__main_module__" "call" (func $call (param i32 i32 i32) (result i64)))
(import "guest-memory" "store32" (func $store32 (param i32 i32)))

;; Room of the module's, from alloc, which may refuse. It is the caller's up to the next alloc.
(func $room (param $n i32) (result i32)
  (local $at i32)
  (local.set $at (call $alloc (local.get $n)))
  (if (i32.eqz (local.get $at)) (then (unreachable)))
  (local.get $at))

;; What the host passes is the input, in one piece. Behind it is room for what call answers: 16 bytes, aligned.
(func (export "cabi_realloc") (param $old i32) (param $had i32) (param $align i32) (param $n i32) (result i32)
  (local $with i32)
  (local.set $with (i32.add (local.get $n) (i32.const 20)))
  (if (i32.or (local.get $had) (i32.lt_u (local.get $with) (local.get $n))) (then (unreachable)))
  (call $room (local.get $with)))

(func $aligned (param $at i32) (result i32)
  (i32.and (i32.add (local.get $at) (i32.const 3)) (i32.const -4)))

;; Answers a string. Its place is taken before, since the next alloc would end the answer's life. An error is a string like
;; another here: it is no manifest, and who reads it as one shows it.
(func (export "describe") (result i32)
  (local $place i32) (local $text i64)
  (local.set $place (call $aligned (call $room (i32.const 12))))
  (local.set $text (call $describe))
  (call $store32 (local.get $place) (i32.wrap_i64 (i64.shr_u (local.get $text) (i64.const 32))))
  (call $store32 (i32.add (local.get $place) (i32.const 4)) (i32.and (i32.wrap_i64 (local.get $text)) (i32.const 0x7fffffff)))
  (local.get $place))

;; Answers a result<option<list<u8>>, string>.
(func (export "call") (param $op i32) (param $at i32) (param $n i32) (result i32)
  (local $place i32) (local $answer i64) (local $from i32) (local $length i32)
  (if (i32.eqz (local.get $n))
    (then
      (local.set $at (i32.const 0)) ;; an empty input has no place
      (local.set $place (call $aligned (call $room (i32.const 20)))))
    (else (local.set $place (call $aligned (i32.add (local.get $at) (local.get $n))))))
  (local.set $answer (call $call (local.get $op) (local.get $at) (local.get $n)))
  (local.set $from (i32.wrap_i64 (i64.shr_u (local.get $answer) (i64.const 32))))
  (local.set $length (i32.and (i32.wrap_i64 (local.get $answer)) (i32.const 0x7fffffff)))
  (if (i32.lt_s (i32.wrap_i64 (local.get $answer)) (i32.const 0))
    (then ;; a message
      (call $store32 (local.get $place) (i32.const 1))
      (call $store32 (i32.add (local.get $place) (i32.const 4)) (local.get $from))
      (call $store32 (i32.add (local.get $place) (i32.const 8)) (local.get $length)))
    (else
      (call $store32 (local.get $place) (i32.const 0))
      (call $store32 (i32.add (local.get $place) (i32.const 4)) (i32.ne (local.get $length) (i32.const 0)))
      (call $store32 (i32.add (local.get $place) (i32.const 8)) (local.get $from))
      (call $store32 (i32.add (local.get $place) (i32.const 12)) (local.get $length))))
  (local.get $place))

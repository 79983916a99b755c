;; The no-privileged plugin refuses privileged containers. It is written by hand
;; from sdk/spec/README.md, without an SDK; numbers in brackets are sections of that page.
(module
  (memory (export "memory") 2)

  ;; [3] The manifest: two fields, as a flat table.
  (data (i32.const 1024) "{\"abi\":1,\"name\":\"no-privileged\",\"version\":\"1.0.0\",\"hooks\":[{\"op\":1,\"point\":\"admission.validate\",\"encoding\":\"flat\",\"match\":[{\"operations\":[\"CREATE\",\"UPDATE\"],\"resources\":[\"*\"]}],\"fields\":[\"object.@podSpec.containers[*].securityContext.privileged\",\"object.@podSpec.initContainers[*].securityContext.privileged\"]}]}")
  (func (export "describe") (result i64)
    (i64.or (i64.shl (i64.const 1024) (i64.const 32)) (i64.const 312)))

  ;; [7.1] The one answer that is not empty.
  (data (i32.const 4096) "{\"allowed\":false,\"message\":\"privileged containers are not allowed\"}")

  ;; [2] The second page is the room for inputs. It grows where an input is larger.
  (func (export "alloc") (param $length i32) (result i32)
    (local $missing i32)
    (local.set $missing (i32.sub
      (i32.add (i32.const 1) (i32.shr_u (i32.add (local.get $length) (i32.const 65535)) (i32.const 16)))
      (memory.size)))
    (if (i32.gt_s (local.get $missing) (i32.const 0))
      (then
        (if (i32.eq (memory.grow (local.get $missing)) (i32.const -1))
          (then (return (i32.const 0))))))
    (i32.const 65536))

  (func (export "call") (param $op i32) (param $at i32) (param $length i32) (result i64)
    (if (i32.or
          (call $any_true (local.get $at) (i32.const 0))
          (call $any_true (local.get $at) (i32.const 1)))
      (then (return (i64.or (i64.shl (i64.const 4096) (i64.const 32)) (i64.const 67)))))
    (i64.const 0))

  ;; [5] Whether a field, an array of what containers say, holds true anywhere.
  (func $any_true (param $at i32) (param $field i32) (result i32)
    (local $cell i64) (local $item i32) (local $end i32)
    ;; The root is an array of fields: its offset is in the low half of the cell at 0.
    (local.set $cell (i64.load (i32.add
      (i32.add (local.get $at) (i32.load (local.get $at)))
      (i32.mul (local.get $field) (i32.const 8)))))
    (if (i64.ne (i64.shr_u (local.get $cell) (i64.const 60)) (i64.const 6))
      (then (return (i32.const 0)))) ;; absent or null: no array
    (local.set $item (i32.add (local.get $at) (i32.wrap_i64 (local.get $cell))))
    (local.set $end (i32.add (local.get $item) (i32.mul (i32.const 8)
      (i32.and (i32.wrap_i64 (i64.shr_u (local.get $cell) (i64.const 32))) (i32.const 0xfffffff)))))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $item) (local.get $end)))
        (if (i64.eq (i64.shr_u (i64.load (local.get $item)) (i64.const 60)) (i64.const 2))
          (then (return (i32.const 1))))
        (local.set $item (i32.add (local.get $item) (i32.const 8)))
        (br $next)))
    (i32.const 0))
)

;; The module's memory, for adapters that have one of their own.
(import "__main_module__" "memory" (memory 0))
(func (export "load8") (param $at i32) (result i32) (i32.load8_u (local.get $at)))
(func (export "load32") (param $at i32) (result i32) (i32.load align=1 (local.get $at)))
(func (export "load64") (param $at i32) (result i64) (i64.load align=1 (local.get $at)))
(func (export "store8") (param $at i32) (param $v i32) (i32.store8 (local.get $at) (local.get $v)))
(func (export "store32") (param $at i32) (param $v i32) (i32.store align=1 (local.get $at) (local.get $v)))
(func (export "store64") (param $at i32) (param $v i64) (i64.store align=1 (local.get $at) (local.get $v)))

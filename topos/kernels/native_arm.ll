; FPCR 0: round to nearest, no flush to zero, default NaN off.
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
define internal i64 @control_set() {
  %old = call i64 @llvm.aarch64.get.fpcr()
  call void @llvm.aarch64.set.fpcr(i64 0)
  ret i64 %old
}
define internal void @control_restore(i64 %old) {
  call void @llvm.aarch64.set.fpcr(i64 %old)
  ret void
}
; An intrinsic, not inline assembly: llvmlite brings an assembly parser for the machine's own family alone.
declare void @llvm.aarch64.hint(i32)
define internal void @pause() alwaysinline {
  call void @llvm.aarch64.hint(i32 1)
  ret void
}

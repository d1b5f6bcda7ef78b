wait:
  call void @pause()
  %next = add i64 %turn, 1
  %long = icmp sgt i64 %next, $SPINS
  br i1 %long, label %yield, label %again
yield:
  %yielded = call i32 @sched_yield()
  br label %again
again:
  br label %spin

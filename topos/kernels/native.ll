; The entry from Python and the thread team; `native.py` fills in what depends on the target and on a team's words.
declare i64 @syscall(i64, ...)
declare i32 @usleep(i32)
declare i32 @sched_yield()
declare i64 @PyLong_AsLongLong(ptr)
declare i64 @PyLong_AsLongLongAndOverflow(ptr, ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyTuple_GetItem(ptr, i64)
declare i64 @PyTuple_Size(ptr)
declare ptr @PyObject_Call(ptr, ptr, ptr)
declare ptr @PyObject_CallNoArgs(ptr)
declare ptr @PyType_GenericAlloc(ptr, i64)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare i32 @PyObject_GetBuffer(ptr, ptr, i32)
declare void @PyBuffer_Release(ptr)
declare double @PyFloat_AsDouble(ptr)
declare void @PyErr_Clear()
declare i32 @PyErr_ExceptionMatches(ptr)
declare ptr @PyErr_NoMemory()
declare ptr @PyMem_Malloc(i64)
declare void @PyMem_Free(ptr)
@PyExc_TypeError = external global ptr
@PyExc_BufferError = external global ptr
@PyExc_ValueError = external global ptr
@PyExc_OverflowError = external global ptr
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyObject_VectorcallMethod(ptr, ptr, i64, ptr)
declare i32 @PyObject_RichCompareBool(ptr, ptr, i32)
declare i64 @PyDict_Size(ptr)
declare i32 @PyDict_Next(ptr, ptr, ptr, ptr)
declare i64 @PyList_Size(ptr)
declare ptr @PyList_GetItem(ptr, i64)
declare i32 @PyList_Append(ptr, ptr)
declare i32 @PyList_SetSlice(ptr, i64, i64, ptr)
declare i32 @PyContextVar_Get(ptr, ptr, ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
$control
define i64 @control_read() {
  %old = call i64 @control_set()
  call void @control_restore(i64 %old)
  ret i64 %old
}
define void @control_write(i64 %word) {
  call void @control_restore(i64 %word)
  ret void
}

; The ticket of a row is its generation, then 16 bits: how many tasks nobody has claimed, which is the number of the next.
; Who claims one has the row's words, since no other row is handed out before all tasks of this one are done.
define void @worker(ptr %team) {
entry:
  %pticket = getelementptr i64, ptr %team, i64 $TICKET
  %prunning = getelementptr i64, ptr %team, i64 $RUNNING
  %pquit = getelementptr i64, ptr %team, i64 $QUIT
  %pdone = getelementptr i64, ptr %team, i64 $DONE
  %psleeping = getelementptr i64, ptr %team, i64 $SLEEPING
  %pkernel = getelementptr i64, ptr %team, i64 $KERNEL
  %prow = getelementptr i64, ptr %team, i64 $ROW
  %pbanks = getelementptr i64, ptr %team, i64 $BANKS
  %ptasks = getelementptr i64, ptr %team, i64 $TASKS
  br label %parked
parked:
  %idling = phi i64 [ 0, %entry ], [ 0, %settle ], [ %longer, %linger ], [ 0, %sleep ]
  %stop = load atomic i64, ptr %pquit acquire, align 8
  %stopping = icmp ne i64 %stop, 0
  br i1 %stopping, label %leave, label %look
look:
  %running0 = load atomic i64, ptr %prunning acquire, align 8
  %idle = icmp eq i64 %running0, 0
  br i1 %idle, label %linger, label %awake
linger:
  %lingered = call i32 @sched_yield()
  %longer = add i64 %idling, 1
  %tired = icmp sgt i64 %longer, $LINGER
  br i1 %tired, label %sleep, label %parked
sleep:
  %sleepers = atomicrmw add ptr %psleeping, i64 1 seq_cst
$park
  %woken = atomicrmw sub ptr %psleeping, i64 1 seq_cst
  br label %parked
awake:
  call i64 @control_set()
  br label %spin
spin:
  %turn = phi i64 [ 0, %awake ], [ %next, %again ], [ 0, %claim ], [ 0, %run ]
  %ticket = load atomic i64, ptr %pticket acquire, align 8
  %task = and i64 %ticket, 65535
  %none = icmp eq i64 %task, 0
  br i1 %none, label %settle, label %claim
settle:
  %running = load atomic i64, ptr %prunning acquire, align 8
  %over = icmp ne i64 %running, 1
  br i1 %over, label %parked, label %wait
$wait
claim:
  %kernel = load atomic ptr, ptr %pkernel monotonic, align 8
  %row = load atomic i64, ptr %prow monotonic, align 8
  %banks = load atomic i64, ptr %pbanks monotonic, align 8
  %tasks = load atomic i64, ptr %ptasks monotonic, align 8
  %fewer = sub i64 %ticket, 1
  %pair = cmpxchg ptr %pticket, i64 %ticket, i64 %fewer acq_rel monotonic
  %won = extractvalue { i64, i1 } %pair, 1
  br i1 %won, label %run, label %spin
run:
  call void %kernel(i64 %row, i64 %banks, i64 %task, i64 %tasks)
  %before = atomicrmw add ptr %pdone, i64 1 release
  br label %spin
leave:
  ret void
}

; Hand out a row, and do the tasks of it that no worker claims: one that sleeps still, or has no core, holds nothing up.
define void @fan(i64 %address, i64 %function, i64 %row, i64 %banks, i64 %tasks) {
entry:
  %team = inttoptr i64 %address to ptr
  %pticket = getelementptr i64, ptr %team, i64 $TICKET
  %pdone = getelementptr i64, ptr %team, i64 $DONE
  %pkernel = getelementptr i64, ptr %team, i64 $KERNEL
  %prow = getelementptr i64, ptr %team, i64 $ROW
  %pbanks = getelementptr i64, ptr %team, i64 $BANKS
  %ptasks = getelementptr i64, ptr %team, i64 $TASKS
  store atomic i64 %function, ptr %pkernel monotonic, align 8
  store atomic i64 %row, ptr %prow monotonic, align 8
  store atomic i64 %banks, ptr %pbanks monotonic, align 8
  store atomic i64 %tasks, ptr %ptasks monotonic, align 8
  store atomic i64 0, ptr %pdone monotonic, align 8
  %others = sub i64 %tasks, 1
  %generation = add i64 %others, 65536
  %first = atomicrmw add ptr %pticket, i64 %generation seq_cst
  %kernel = inttoptr i64 %function to ptr
  call void %kernel(i64 %row, i64 %banks, i64 0, i64 %tasks)
  br label %look
look:
  %helped = phi i64 [ 0, %entry ], [ %helped, %claim ], [ %more, %help ]
  %ticket = load atomic i64, ptr %pticket acquire, align 8
  %task = and i64 %ticket, 65535
  %none = icmp eq i64 %task, 0
  br i1 %none, label %settle, label %claim
claim:
  %fewer = sub i64 %ticket, 1
  %pair = cmpxchg ptr %pticket, i64 %ticket, i64 %fewer acq_rel monotonic
  %won = extractvalue { i64, i1 } %pair, 1
  br i1 %won, label %help, label %look
help:
  call void %kernel(i64 %row, i64 %banks, i64 %task, i64 %tasks)
  %more = add i64 %helped, 1
  br label %look
settle:
  %claimed = sub i64 %others, %helped
  br label %spin
spin:
  %turn = phi i64 [ 0, %settle ], [ %next, %again ]
  %done = load atomic i64, ptr %pdone acquire, align 8
  %ready = icmp sge i64 %done, %claimed
  br i1 %ready, label %leave, label %wait
$wait
leave:
  ret void
}

; A team that ends is claimed as a run claims it, for good: no run loses its workers halfway. The running
; word stays at 2, so that no worker parks again and none spins on.
define void @quit(ptr %team) {
entry:
  %prunning = getelementptr i64, ptr %team, i64 $RUNNING
  %pquit = getelementptr i64, ptr %team, i64 $QUIT
  %pbusy = getelementptr i64, ptr %team, i64 $BUSY
  br label %claim
claim:
  %pair = cmpxchg ptr %pbusy, i64 0, i64 1 acquire monotonic
  %won = extractvalue { i64, i1 } %pair, 1
  br i1 %won, label %end, label %wait
wait:
  %yielded = call i32 @sched_yield()
  br label %claim
end:
  store atomic i64 1, ptr %pquit release, align 8
  store atomic i64 2, ptr %prunning release, align 8
$wake
  ret void
}

; Walks a program `count` times, with a table of banks `stride` bytes further each time, up to the first error:
; returns the walk that reported it, or -1. One of little work keeps the GIL: to give it back takes as long. A team that is
; there shares rows of a quarter of the grain too: what the grain pays for is that sleepers are woken.
define internal i64 @walk(i64 %executor, i64 %code, i64 %end, i64 %first, i64 %address, i64 %wanted, i64 %grain,
                          i64 %count, i64 %stride, i64 %work) {
entry:
  %brief = icmp slt i64 %work, $BRIEF
  br i1 %brief, label %begin, label %give
give:
  %given = call ptr @PyEval_SaveThread()
  br label %begin
begin:
  %state = phi ptr [ null, %entry ], [ %given, %give ]
  %control = call i64 @control_set()
  %execute = inttoptr i64 %executor to ptr
  %team = inttoptr i64 %address to ptr
  %pbusy = getelementptr i64, ptr %team, i64 $BUSY
  %prunning = getelementptr i64, ptr %team, i64 $RUNNING
  %many = icmp sgt i64 %wanted, 1
  %finer = ashr i64 %grain, 2
  br i1 %many, label %claim, label %serial
claim:
  %pair = cmpxchg ptr %pbusy, i64 0, i64 1 acquire monotonic
  %won = extractvalue { i64, i1 } %pair, 1
  br i1 %won, label %parallel, label %serial
parallel:
  store atomic i64 1, ptr %prunning seq_cst, align 8
  %psleeping = getelementptr i64, ptr %team, i64 $SLEEPING
  %sleepers = load atomic i64, ptr %psleeping seq_cst, align 8
  %slept = icmp sgt i64 %sleepers, 0
  br i1 %slept, label %rouse, label %next
rouse:
$wake
  br label %next
serial:
  br label %next
next:
  %threads = phi i64 [ %wanted, %parallel ], [ %wanted, %rouse ], [ 1, %serial ], [ %threads, %onward ]
  %turn = phi i64 [ 0, %parallel ], [ 0, %rouse ], [ 0, %serial ], [ %following, %onward ]
  %step = mul i64 %turn, %stride
  %banks = add i64 %first, %step
  call void %execute(i64 %code, i64 %end, i64 %banks, i64 %address, i64 %threads, i64 %finer)
  %table = inttoptr i64 %banks to ptr
  %errors = load ptr, ptr %table
  %silent = icmp eq ptr %errors, null
  br i1 %silent, label %onward, label %look
look:
  %node = load i64, ptr %errors
  %failed = icmp sge i64 %node, 0
  br i1 %failed, label %finish, label %onward
onward:
  %following = add i64 %turn, 1
  %again = icmp slt i64 %following, %count
  br i1 %again, label %next, label %finish
finish:
  %at = phi i64 [ %turn, %look ], [ -1, %onward ]
  %held = icmp sgt i64 %threads, 1
  br i1 %held, label %release, label %leave
release:
  store atomic i64 0, ptr %prunning release, align 8
  store atomic i64 0, ptr %pbusy release, align 8
  br label %leave
leave:
  call void @control_restore(i64 %control)
  br i1 %brief, label %done, label %take
take:
  call void @PyEval_RestoreThread(ptr %state)
  br label %done
done:
  ret i64 %at
}

; entry(execute, code, end, banks, told, count, stride, work) -> what @walk returns; `work` is that of the largest row, and `told`
; where `runtime` says what @team reads
define ptr @entry(ptr %self, ptr %arguments, i64 %given) {
entry:
  %execute = call i64 @integer(ptr %arguments, i64 0)
  %code = call i64 @integer(ptr %arguments, i64 1)
  %end = call i64 @integer(ptr %arguments, i64 2)
  %banks = call i64 @integer(ptr %arguments, i64 3)
  %told = call i64 @integer(ptr %arguments, i64 4)
  %count = call i64 @integer(ptr %arguments, i64 5)
  %stride = call i64 @integer(ptr %arguments, i64 6)
  %work = call i64 @integer(ptr %arguments, i64 7)
  %team = call { i64, i64, i64, i1 } @team(i64 %told, i64 %work)
  %address = extractvalue { i64, i64, i64, i1 } %team, 0
  %threads = extractvalue { i64, i64, i64, i1 } %team, 1
  %grain = extractvalue { i64, i64, i64, i1 } %team, 2
  %there = extractvalue { i64, i64, i64, i1 } %team, 3
  br i1 %there, label %run, label %raise
run:
  %at = call i64 @walk(i64 %execute, i64 %code, i64 %end, i64 %banks, i64 %address, i64 %threads, i64 %grain, i64 %count,
                       i64 %stride, i64 $BRIEF)
  %answer = call ptr @PyLong_FromLongLong(i64 %at)
  ret ptr %answer
raise:
  ret ptr null
}
define internal i64 @integer(ptr %arguments, i64 %at) {
  %place = getelementptr ptr, ptr %arguments, i64 %at
  %object = load ptr, ptr %place
  %integer = call i64 @PyLong_AsLongLong(ptr %object)
  ret i64 %integer
}
define internal i64 @word(ptr %words, i64 %at) alwaysinline {
  %place = getelementptr i64, ptr %words, i64 %at
  %word = load i64, ptr %place
  ret i64 %word
}

; The team's address, how many threads there are and the grain, for rows of up to some work; false, and an exception, where they
; cannot be had. A team is asked for when it may take part: `told` are the grain, how many threads there are (0: nobody asked
; yet) and the address of their team, and what Python calls to write these.
define internal { i64, i64, i64, i1 } @team(i64 %told, i64 %work) {
entry:
  %telling = inttoptr i64 %told to ptr
  %grain = call i64 @word(ptr %telling, i64 0)
  %small = icmp slt i64 %work, %grain
  br i1 %small, label %alone, label %many
alone:
  ret { i64, i64, i64, i1 } { i64 0, i64 1, i64 0, i1 true }
many:
  %before = call i64 @word(ptr %telling, i64 1)
  %known = icmp ne i64 %before, 0
  br i1 %known, label %read, label %ask
ask:
  %teller = call i64 @word(ptr %telling, i64 3)
  %function = inttoptr i64 %teller to ptr
  %answer = call ptr @PyObject_CallNoArgs(ptr %function)
  %failed = icmp eq ptr %answer, null
  br i1 %failed, label %raise, label %drop
drop:
  call void @Py_DecRef(ptr %answer)
  br label %read
read:
  %threads = call i64 @word(ptr %telling, i64 1)
  %address = call i64 @word(ptr %telling, i64 2)
  %first = insertvalue { i64, i64, i64, i1 } { i64 0, i64 0, i64 0, i1 true }, i64 %address, 0
  %second = insertvalue { i64, i64, i64, i1 } %first, i64 %threads, 1
  %third = insertvalue { i64, i64, i64, i1 } %second, i64 %grain, 2
  ret { i64, i64, i64, i1 } %third
raise:
  ret { i64, i64, i64, i1 } zeroinitializer
}

; Where an object's memory starts; 0, and an exception, where it has none of one piece. `arrays` are the address of NumPy's
; class and the bytes of an object's head, whose last word is the class: of an array of one piece, memory is the word behind.
define internal i64 @start(ptr %object, ptr %arrays) {
  %view = alloca [16 x i64], align 8
  %class = load i64, ptr %arrays
  %phead = getelementptr i64, ptr %arrays, i64 1
  %head = load i64, ptr %phead
  %pdata = getelementptr i8, ptr %object, i64 %head
  %ptype = getelementptr i64, ptr %pdata, i64 -1
  %pflags = getelementptr i64, ptr %pdata, i64 6
  %type = load i64, ptr %ptype
  %is_array = icmp eq i64 %type, %class
  br i1 %is_array, label %look, label %ask
look:
  %flags = load i32, ptr %pflags
  %bit = and i32 %flags, 1
  %whole = icmp ne i32 %bit, 0
  br i1 %whole, label %read, label %ask
read:
  %data = load i64, ptr %pdata
  ret i64 %data
ask:
  %status = call i32 @PyObject_GetBuffer(ptr %object, ptr %view, i32 0)
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %raise, label %found
found:
  %start = load i64, ptr %view
  call void @PyBuffer_Release(ptr %view)
  ret i64 %start
raise:
  ret i64 0
}

; buffer_address(array) -> where its memory starts, a method of what @start takes, as @launch is
define ptr @buffer_address(ptr %self, ptr %arguments, i64 %count) {
  %object = load ptr, ptr %arguments
  %boxed = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %arrays = call ptr @PyLong_AsVoidPtr(ptr %boxed)
  %start = call i64 @start(ptr %object, ptr %arrays)
  %failed = icmp eq i64 %start, 0
  br i1 %failed, label %raise, label %found
found:
  %answer = call ptr @PyLong_FromLongLong(i64 %start)
  ret ptr %answer
raise:
  ret ptr null
}

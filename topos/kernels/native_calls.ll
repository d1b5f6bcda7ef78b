; Calls on tensors: `launch` computes what Python has looked up, and a method of a class looks up itself what it computed before.

; Walks a program once over a table of banks on the stack (error word, arena, nothing, the operands), and returns a new
; tensor of the memory that is the arena. Operands are tensors, read through their slots, as the result is written.
; What is of a subclass may keep its numbers elsewhere, and a slot may be empty: None is asked for memory then, and refuses.
; The words: how arrays are read (see @start), how the program is walked (`runtime.walking`); the bytes of an element; what
; allocates memory, and of which arguments; None, the class of tensors, the layout of the result, the program; where the
; slots of a tensor and of a layout lie.
define internal ptr @compute(ptr %words, ptr %given, i64 %operands, i64 %team, i64 %threads, i64 %grain) {
entry:
$walked
$made
  %absent = icmp slt i64 %operands, 1
  br i1 %absent, label %raise, label %allot
allot:
  %room = add i64 %operands, 7
  %table = alloca i64, i64 %room, align 64
  %parena = getelementptr i64, ptr %table, i64 1
  %pnothing = getelementptr i64, ptr %table, i64 2
  %nothing = inttoptr i64 %none to ptr
  store i64 0, ptr %pnothing
  br label %next
next:
  %at = phi i64 [ 0, %allot ], [ %following, %bind ]
  %bank = add i64 %at, 3
  %pword = getelementptr i64, ptr %table, i64 %bank
  %more = icmp slt i64 %at, %operands
  br i1 %more, label %look, label %allocated
look:
  %poperand = getelementptr ptr, ptr %given, i64 %at
  %operand = load ptr, ptr %poperand
  %pbehind = getelementptr i8, ptr %operand, i64 %head
  %ptype = getelementptr i64, ptr %pbehind, i64 -1
  %type = load i64, ptr %ptype
  %exact = icmp eq i64 %type, %tensor
  %pbuffer = getelementptr i8, ptr %operand, i64 %buffer_at
  %buffer = load ptr, ptr %pbuffer
  %there = icmp ne ptr %buffer, null
  %known = and i1 %exact, %there
  %source = select i1 %known, ptr %buffer, ptr %nothing
  %first = call i64 @start(ptr %source, ptr %words)
  %missing = icmp eq i64 %first, 0
  br i1 %missing, label %raise, label %bind
bind:
  %player = getelementptr i8, ptr %operand, i64 %layout_at
  %layout = load ptr, ptr %player
  %poffset = getelementptr i8, ptr %layout, i64 %offset_at
  %measured = load ptr, ptr %poffset
  %elements = call i64 @PyLong_AsLongLong(ptr %measured)
  %offset = mul i64 %elements, %size
  %address = add i64 %first, %offset
  store i64 %address, ptr %pword
  %following = add i64 %at, 1
  %misread = icmp slt i64 %elements, 0
  br i1 %misread, label %raise, label %next
allocated:
  %allocator = inttoptr i64 %allocate to ptr
  %wanted = inttoptr i64 %asked to ptr
  %memory = call ptr @PyObject_Call(ptr %allocator, ptr %wanted, ptr null)
  %refused = icmp eq ptr %memory, null
  br i1 %refused, label %raise, label %run
run:
  %arena = call i64 @start(ptr %memory, ptr %words)
  store i64 %arena, ptr %parena
  %errors = ptrtoint ptr %pword to i64
  store i64 %errors, ptr %table
  store [4 x i64] [i64 -1, i64 0, i64 0, i64 -1], ptr %pword
  %banks = ptrtoint ptr %table to i64
  call i64 @walk(i64 %execute, i64 %code, i64 %end, i64 %banks, i64 %team, i64 %threads, i64 %grain, i64 1, i64 0,
                 i64 %work)
  %kind = inttoptr i64 %tensor to ptr
  %made = call ptr @PyType_GenericAlloc(ptr %kind, i64 0)
  %failed = icmp eq ptr %made, null
  br i1 %failed, label %drop, label %fill
fill:
  %leader = load ptr, ptr %given
  %pelement = getelementptr i8, ptr %leader, i64 %element_at
  %element = load ptr, ptr %pelement
  %reading = inttoptr i64 %result to ptr
  call void @set(ptr %made, i64 %element_at, ptr %element)
  call void @set(ptr %made, i64 %buffer_at, ptr %memory)
  call void @set(ptr %made, i64 %layout_at, ptr %reading)
  call void @set(ptr %made, i64 %selection_at, ptr %nothing)
  call void @Py_DecRef(ptr %memory)
  ret ptr %made
drop:
  call void @Py_DecRef(ptr %memory)
  br label %raise
raise:
  ret ptr null
}
define internal void @set(ptr %object, i64 %slot, ptr %value) {
  %place = getelementptr i8, ptr %object, i64 %slot
  store ptr %value, ptr %place
  call void @Py_IncRef(ptr %value)
  ret void
}

; launch(team, threads, grain, operand, operand, ...), a method of a tuple whose first is the address of @compute's words
define ptr @launch(ptr %self, ptr %arguments, i64 %count) {
$three
  %boxed = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %words = call ptr @PyLong_AsVoidPtr(ptr %boxed)
  %given = getelementptr ptr, ptr %arguments, i64 3
  %operands = sub i64 %count, 3
  %made = call ptr @compute(ptr %words, ptr %given, i64 %operands, i64 %a0, i64 %a1, i64 %a2)
  ret ptr %made
}

; What methods know, from `runtime.methods`: bytes of an object's head, the class of tensors, where the slots of tensors and
; of their layouts lie, the class of integers, the first method that takes integers, and the known calls, in
; sets of 4; then, per method, what Python calls for arguments of other kinds and for those that are new.
@known = internal global ptr null
define void @adopt(ptr %words) {
  store ptr %words, ptr @known
  ret void
}

; What makes a call the one that was known: 5 words, the method with which of its arguments are tensors, the element of all,
; the walk of each, or an integer itself. Objects that a known call holds have addresses of their own. Returns how many
; operands there are; 0 where an argument is of another kind.
define internal i64 @key(ptr %words, i64 %index, ptr %self, ptr %arguments, i64 %count, ptr %keys, ptr %operands) {
entry:
$facts
  %pown = alloca ptr
  store ptr %self, ptr %pown
  %pkind = getelementptr i64, ptr %keys, i64 0
  %pelement = getelementptr i64, ptr %keys, i64 1
  %pthird = getelementptr i64, ptr %keys, i64 3
  %pfourth = getelementptr i64, ptr %keys, i64 4
  store i64 0, ptr %pthird
  store i64 0, ptr %pfourth
  %few = icmp slt i64 %count, 3
  br i1 %few, label %next, label %refuse
next:
  %at = phi i64 [ -1, %entry ], [ %following, %keep ]
  %found = phi i64 [ 0, %entry ], [ %grown, %keep ]
  %kind = phi i64 [ %index, %entry ], [ %marked, %keep ]
  %shared = phi i64 [ 0, %entry ], [ %element, %keep ]
  %more = icmp slt i64 %at, %count
  br i1 %more, label %look, label %done
look:
  %is_self = icmp slt i64 %at, 0
  %pargument = getelementptr ptr, ptr %arguments, i64 %at
  %pobject = select i1 %is_self, ptr %pown, ptr %pargument
  %object = load ptr, ptr %pobject
  %pbehind = getelementptr i8, ptr %object, i64 %head
  %ptype = getelementptr i64, ptr %pbehind, i64 -1
  %type = load i64, ptr %ptype
  %exact = icmp eq i64 %type, %tensor
  br i1 %exact, label %operand, label %other
other:
  %number = icmp eq i64 %type, %integer
  %numbered = icmp sge i64 %index, %axial
  %parameter = and i1 %number, %numbered
  %itself = ptrtoint ptr %object to i64
  br i1 %parameter, label %keep, label %refuse
operand:
  %pown_element = getelementptr i8, ptr %object, i64 %element_at
  %own_element = load i64, ptr %pown_element
  %alike = icmp eq i64 %own_element, %shared
  %one = or i1 %alike, %is_self
  %player = getelementptr i8, ptr %object, i64 %layout_at
  %layout = load ptr, ptr %player
  %laid = icmp ne ptr %layout, null
  %fit = and i1 %one, %laid
  br i1 %fit, label %enlist, label %refuse
enlist:
  %poperand = getelementptr ptr, ptr %operands, i64 %found
  store ptr %object, ptr %poperand
  %pwalk = getelementptr i8, ptr %layout, i64 %walk_at
  %walk = load i64, ptr %pwalk
  br label %keep
keep:
  %word = phi i64 [ %itself, %other ], [ %walk, %enlist ]
  %element = phi i64 [ %shared, %other ], [ %own_element, %enlist ]
  %step = phi i64 [ 0, %other ], [ 1, %enlist ]
  %grown = add i64 %found, %step
  %doubled = shl i64 %kind, 2
  %offset = add i64 %step, 1
  %marked = add i64 %doubled, %offset
  %place = add i64 %at, 3
  %pword = getelementptr i64, ptr %keys, i64 %place
  store i64 %word, ptr %pword
  %following = add i64 %at, 1
  br label %next
done:
  store i64 %kind, ptr %pkind
  store i64 %shared, ptr %pelement
  ret i64 %found
refuse:
  ret i64 0
}

; Where the call of a key lies, or null, and where it would: at an empty place of its set, else at any.
define internal { ptr, ptr } @find(ptr %words, ptr %keys) {
entry:
$facts
  %table = inttoptr i64 %calls to ptr
  br label %mix
mix:
  %turn = phi i64 [ 0, %entry ], [ %turned, %mix ]
  %mixed = phi i64 [ 0, %entry ], [ %product, %mix ]
  %pword = getelementptr i64, ptr %keys, i64 %turn
  %word = load i64, ptr %pword
  %low = lshr i64 %mixed, 29
  %folded = xor i64 %mixed, %low
  %sum = add i64 %folded, %word
  %product = mul i64 %sum, -7046029254386353131
  %turned = add i64 %turn, 1
  %mixing = icmp slt i64 %turned, 5
  br i1 %mixing, label %mix, label %choose
choose:
  %set = lshr i64 %product, 56
  %start = shl i64 %set, 8
  %ways = getelementptr i8, ptr %table, i64 %start
  %far = lshr i64 %product, 54
  %chance = and i64 %far, 3
  br label %way
way:
  %at = phi i64 [ 0, %choose ], [ %onward, %different ]
  %free = phi i64 [ %chance, %choose ], [ %open, %different ]
  %bytes = shl i64 %at, 6
  %entry_at = getelementptr i8, ptr %ways, i64 %bytes
  br label %compare
compare:
  %part = phi i64 [ 0, %way ], [ %later, %equal ]
  %left = icmp slt i64 %part, 5
  br i1 %left, label %pair, label %hit
pair:
  %pown = getelementptr i64, ptr %entry_at, i64 %part
  %own = load i64, ptr %pown
  %pwanted = getelementptr i64, ptr %keys, i64 %part
  %wanted = load i64, ptr %pwanted
  %same = icmp eq i64 %own, %wanted
  br i1 %same, label %equal, label %different
equal:
  %later = add i64 %part, 1
  br label %compare
different:
  %pfirst = getelementptr i64, ptr %entry_at, i64 0
  %first = load i64, ptr %pfirst
  %empty = icmp eq i64 %first, 0
  %open = select i1 %empty, i64 %at, i64 %free
  %onward = add i64 %at, 1
  %another = icmp slt i64 %onward, 4
  br i1 %another, label %way, label %miss
hit:
  %there = insertvalue { ptr, ptr } undef, ptr %entry_at, 0
  %both = insertvalue { ptr, ptr } %there, ptr %entry_at, 1
  ret { ptr, ptr } %both
miss:
  %skipped = shl i64 %open, 6
  %place = getelementptr i8, ptr %ways, i64 %skipped
  %nowhere = insertvalue { ptr, ptr } undef, ptr null, 0
  %pending = insertvalue { ptr, ptr } %nowhere, ptr %place, 1
  ret { ptr, ptr } %pending
}

; remember(index, operand, argument, ...), a method of a `launch`'s tuple: calls with such arguments walk its program from now
; on. What the key consists of is held, so that no other object comes to lie there.
define ptr @remember(ptr %self, ptr %arguments, i64 %count) {
entry:
  %keys = alloca [5 x i64]
  %operands = alloca [3 x ptr]
  %pleader = getelementptr ptr, ptr %arguments, i64 1
  %leader = load ptr, ptr %pleader
  %rest = getelementptr ptr, ptr %arguments, i64 2
  %others = sub i64 %count, 2
  %boxed = load ptr, ptr %arguments
  %index = call i64 @PyLong_AsLongLong(ptr %boxed)
  %words = load ptr, ptr @known
  %found = call i64 @key(ptr %words, i64 %index, ptr %leader, ptr %rest, i64 %others, ptr %keys, ptr %operands)
  %none = icmp eq i64 %found, 0
  br i1 %none, label %leave, label %search
search:
  %places = call { ptr, ptr } @find(ptr %words, ptr %keys)
  %place = extractvalue { ptr, ptr } %places, 1
  %program = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %address = call ptr @PyLong_AsVoidPtr(ptr %program)
  %pprogram = getelementptr i64, ptr %place, i64 5
  %pheld = getelementptr i64, ptr %place, i64 6
  %was = load ptr, ptr %pheld
  %before = load [5 x i64], ptr %place
  %key = load [5 x i64], ptr %keys
  store [5 x i64] %key, ptr %place
  store ptr %address, ptr %pprogram
  store ptr %self, ptr %pheld
  %old = alloca [5 x i64]
  store [5 x i64] %before, ptr %old
  call void @Py_IncRef(ptr %self)
  br label %swap
swap:
  %part = phi i64 [ 1, %search ], [ %onward, %swap ]
  %pnew = getelementptr ptr, ptr %keys, i64 %part
  %pold = getelementptr ptr, ptr %old, i64 %part
  %held = load ptr, ptr %pnew
  %let = load ptr, ptr %pold
  call void @Py_IncRef(ptr %held)
  call void @Py_DecRef(ptr %let)
  %onward = add i64 %part, 1
  %swapping = icmp slt i64 %onward, 5
  br i1 %swapping, label %swap, label %drop
drop:
  call void @Py_DecRef(ptr %was)
  br label %leave
leave:
  %answer = call ptr @PyLong_FromLongLong(i64 %found)
  ret ptr %answer
}

; Whether a variable of the context has the value that a program is for.
define internal i1 @guarded(i64 %variable, i64 %expected) {
entry:
  %slot = alloca ptr
  %open = icmp eq i64 %variable, 0
  br i1 %open, label %pass, label %ask
ask:
  store ptr null, ptr %slot
  %asked = inttoptr i64 %variable to ptr
  call i32 @PyContextVar_Get(ptr %asked, ptr null, ptr %slot)
  %value = load ptr, ptr %slot
  call void @Py_DecRef(ptr %value)
  %is = ptrtoint ptr %value to i64
  %same = icmp eq i64 %is, %expected
  ret i1 %same
pass:
  ret i1 true
}

; A method: computes a known call, and leaves any other to Python.
define internal ptr @call(ptr %self, ptr %arguments, i64 %count, ptr %names, i64 %index) noinline {
entry:
  %keys = alloca [5 x i64]
  %operands = alloca [3 x ptr]
  %words = load ptr, ptr @known
  %plain = icmp eq ptr %names, null
  br i1 %plain, label %look, label %refuse
look:
  %given = call i64 @key(ptr %words, i64 %index, ptr %self, ptr %arguments, i64 %count, ptr %keys, ptr %operands)
  %other = icmp eq i64 %given, 0
  br i1 %other, label %refuse, label %search
search:
  %places = call { ptr, ptr } @find(ptr %words, ptr %keys)
  %place = extractvalue { ptr, ptr } %places, 0
  %new = icmp eq ptr %place, null
  br i1 %new, label %python, label %guard
guard:
  %pprogram = getelementptr i64, ptr %place, i64 5
  %program = load ptr, ptr %pprogram
  %team = call { i64, i64, i64, i1 } @shares(ptr %program)
  %address = extractvalue { i64, i64, i64, i1 } %team, 0
  %threads = extractvalue { i64, i64, i64, i1 } %team, 1
  %grain = extractvalue { i64, i64, i64, i1 } %team, 2
  %settled = extractvalue { i64, i64, i64, i1 } %team, 3
  br i1 %settled, label %run, label %refuse
run:
  %pheld = getelementptr i64, ptr %place, i64 6
  %held = load ptr, ptr %pheld
  call void @Py_IncRef(ptr %held)
  %made = call ptr @compute(ptr %program, ptr %operands, i64 %given, i64 %address, i64 %threads, i64 %grain)
  call void @Py_DecRef(ptr %held)
  %failed = icmp eq ptr %made, null
  br i1 %failed, label %clear, label %done
done:
  ret ptr %made
clear:
  call void @PyErr_Clear()
  br label %refuse
refuse:
  br label %python
python:
  %learns = phi i64 [ 1, %search ], [ 0, %refuse ]
  %twice = shl i64 %index, 1
  %behind = add i64 %twice, $FACTS
  %which = add i64 %behind, %learns
  %pfunction = getelementptr ptr, ptr %words, i64 %which
  %function = load ptr, ptr %pfunction
  %named = icmp ne ptr %names, null
  br i1 %named, label %names_too, label %copy
names_too:
  %extra = call i64 @PyTuple_Size(ptr %names)
  br label %copy
copy:
  %keywords = phi i64 [ 0, %python ], [ %extra, %names_too ]
  %passed = add i64 %count, 1
  %all = add i64 %passed, %keywords
  %room = add i64 %all, 1
  %spare = alloca ptr, i64 %room
  %array = getelementptr ptr, ptr %spare, i64 1
  store ptr %self, ptr %array
  %rest = getelementptr ptr, ptr %array, i64 1
  %others = sub i64 %all, 1
  %bytes = shl i64 %others, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %rest, ptr %arguments, i64 %bytes, i1 false)
  %flagged = or i64 %passed, -9223372036854775808
  %result = call ptr @PyObject_Vectorcall(ptr %function, ptr %array, i64 %flagged, ptr %names)
  ret ptr %result
}

; The team's address, how many threads take part in a program, the grain; and whether it may be walked: variables have their
; values, and `runtime.shared` told the grain, how many threads there are (0: nobody asked yet), and their team.
define internal { i64, i64, i64, i1 } @shares(ptr %words) {
entry:
$walked
  %first = call i1 @guarded(i64 %variable, i64 %value)
  br i1 %first, label %watch, label %refuse
watch:
  %both = call i1 @guarded(i64 %second, i64 %other)
  br i1 %both, label %look, label %refuse
look:
  %ptelling = inttoptr i64 %told to ptr
  %pthreads = getelementptr i64, ptr %ptelling, i64 1
  %pteam = getelementptr i64, ptr %ptelling, i64 2
  %grain = load i64, ptr %ptelling
  %small = icmp slt i64 %largest, %grain
  br i1 %small, label %alone, label %many
alone:
  ret { i64, i64, i64, i1 } { i64 0, i64 1, i64 0, i1 true }
many:
  %threads = load i64, ptr %pthreads
  %team = load i64, ptr %pteam
  %asked = icmp ne i64 %threads, 0
  %with_team = insertvalue { i64, i64, i64, i1 } undef, i64 %team, 0
  %with_threads = insertvalue { i64, i64, i64, i1 } %with_team, i64 %threads, 1
  %with_grain = insertvalue { i64, i64, i64, i1 } %with_threads, i64 %grain, 2
  %all = insertvalue { i64, i64, i64, i1 } %with_grain, i1 %asked, 3
  ret { i64, i64, i64, i1 } %all
refuse:
  ret { i64, i64, i64, i1 } zeroinitializer
}
$methods

; Calls on tensors: `launch` computes what Python has looked up, and a method of a class looks up itself what it computed before.

; Walks a program once over a table of banks on the stack (error word, arena, nothing, the operands), and returns a new
; tensor of the memory that is the arena. Operands are tensors, read through their slots, as the result is written.
; What is of a subclass may keep its numbers elsewhere, and a slot may be empty: None is asked for memory then, and refuses.
; The words: how arrays are read (see @start), how the program is walked (`runtime.walking`); the bytes of an element; what
; allocates memory, and of which arguments; None, the class of tensors, the layout of the result, the program; where the
; slots of a tensor and of a layout lie.
define internal ptr @compute(ptr %words, ptr %given, i64 %operands) {
entry:
  %class = call i64 @word(ptr %words, i64 0)
  %head = call i64 @word(ptr %words, i64 1)
  %execute = call i64 @word(ptr %words, i64 2)
  %code = call i64 @word(ptr %words, i64 3)
  %end = call i64 @word(ptr %words, i64 4)
  %work = call i64 @word(ptr %words, i64 5)
  %largest = call i64 @word(ptr %words, i64 6)
  %told = call i64 @word(ptr %words, i64 7)
  %variable = call i64 @word(ptr %words, i64 8)
  %value = call i64 @word(ptr %words, i64 9)
  %second = call i64 @word(ptr %words, i64 10)
  %other = call i64 @word(ptr %words, i64 11)
  %size = call i64 @word(ptr %words, i64 12)
  %allocate = call i64 @word(ptr %words, i64 13)
  %asked = call i64 @word(ptr %words, i64 14)
  %none = call i64 @word(ptr %words, i64 15)
  %tensor = call i64 @word(ptr %words, i64 16)
  %result = call i64 @word(ptr %words, i64 17)
  %kept = call i64 @word(ptr %words, i64 18)
  %element_at = call i64 @word(ptr %words, i64 19)
  %buffer_at = call i64 @word(ptr %words, i64 20)
  %layout_at = call i64 @word(ptr %words, i64 21)
  %selection_at = call i64 @word(ptr %words, i64 22)
  %offset_at = call i64 @word(ptr %words, i64 23)
  %team = call { i64, i64, i64, i1 } @team(i64 %told, i64 %largest)
  %members = extractvalue { i64, i64, i64, i1 } %team, 0
  %threads = extractvalue { i64, i64, i64, i1 } %team, 1
  %grain = extractvalue { i64, i64, i64, i1 } %team, 2
  %met = extractvalue { i64, i64, i64, i1 } %team, 3
  %present = icmp sgt i64 %operands, 0
  %ready = and i1 %met, %present
  br i1 %ready, label %allot, label %raise
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
  call i64 @walk(i64 %execute, i64 %code, i64 %end, i64 %banks, i64 %members, i64 %threads, i64 %grain, i64 1, i64 0,
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

; launch(operand, operand, ...), a method of a tuple whose first is the address of @compute's words
define ptr @launch(ptr %self, ptr %arguments, i64 %count) {
  %boxed = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %words = call ptr @PyLong_AsVoidPtr(ptr %boxed)
  %made = call ptr @compute(ptr %words, ptr %arguments, i64 %count)
  ret ptr %made
}

; What methods know, from `runtime.methods`: bytes of an object's head, the class of tensors, where the slots of tensors and
; of their layouts lie, the classes of integers and of floats, the first method whose operands are turned round and the first
; that takes axes, and the known calls, in sets of 4, with what tells the latest 1,024 others apart; then, per method, what
; Python calls for arguments of other kinds and for those that are to be remembered.
@known = internal global ptr null
define void @adopt(ptr %words) {
  store ptr %words, ptr @known
  ret void
}

; What makes a call the one that was known: 5 words, the method over the kinds of its arguments (2 bits each, none of them 0, below
; the method's), the element of all tensors, the walk of each, or the value of a number. Returns how many operands there are, a number beside tensors is one: null; 0 where
; an argument is of another kind.
define internal i64 @key(ptr %words, i64 %index, ptr %self, ptr %arguments, i64 %count, ptr %keys, ptr %operands) {
entry:
  %head = call i64 @word(ptr %words, i64 0)
  %tensor = call i64 @word(ptr %words, i64 1)
  %element_at = call i64 @word(ptr %words, i64 2)
  %layout_at = call i64 @word(ptr %words, i64 3)
  %walk_at = call i64 @word(ptr %words, i64 4)
  %integers = call i64 @word(ptr %words, i64 5)
  %floats = call i64 @word(ptr %words, i64 6)
  %axial = call i64 @word(ptr %words, i64 8)
  %pown = alloca ptr
  %overflow = alloca i32
  store ptr %self, ptr %pown
  %pelement = getelementptr i64, ptr %keys, i64 1
  %pthird = getelementptr i64, ptr %keys, i64 3
  %pfourth = getelementptr i64, ptr %keys, i64 4
  store i64 0, ptr %pthird
  store i64 0, ptr %pfourth
  %seed = shl i64 %index, 6
  %few = icmp slt i64 %count, 3
  %with_axes = icmp sge i64 %index, %axial
  br i1 %few, label %next, label %refuse
next:
  %at = phi i64 [ -1, %entry ], [ %following, %keep ]
  %found = phi i64 [ 0, %entry ], [ %grown, %keep ]
  %numbers = phi i64 [ 0, %entry ], [ %counted, %keep ]
  %kind = phi i64 [ %seed, %entry ], [ %marked, %keep ]
  %shared = phi i64 [ 0, %entry ], [ %element, %keep ]
  %more = icmp slt i64 %at, %count
  br i1 %more, label %look, label %done
look:
  %is_self = icmp slt i64 %at, 0
  %pargument = getelementptr ptr, ptr %arguments, i64 %at
  %pobject = select i1 %is_self, ptr %pown, ptr %pargument
  %object = load ptr, ptr %pobject
  %poperand = getelementptr ptr, ptr %operands, i64 %found
  %pbehind = getelementptr i8, ptr %object, i64 %head
  %ptype = getelementptr i64, ptr %pbehind, i64 -1
  %type = load i64, ptr %ptype
  %exact = icmp eq i64 %type, %tensor
  br i1 %exact, label %operand, label %other
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
  store ptr %object, ptr %poperand
  %pwalk = getelementptr i8, ptr %layout, i64 %walk_at
  %walk = load i64, ptr %pwalk
  br label %keep
other:
  %integral = icmp eq i64 %type, %integers
  br i1 %integral, label %integer, label %maybe
integer:
  %value = call i64 @PyLong_AsLongLongAndOverflow(ptr %object, ptr %overflow)
  %beyond = load i32, ptr %overflow
  %within = icmp eq i32 %beyond, 0
  br i1 %within, label %number, label %refuse
maybe:
  %real = icmp eq i64 %type, %floats
  br i1 %real, label %float, label %refuse
float:
  %double = call double @PyFloat_AsDouble(ptr %object)
  %bits = bitcast double %double to i64
  br i1 %with_axes, label %refuse, label %number
number:
  %figure = phi i64 [ %value, %integer ], [ %bits, %float ]
  %code = phi i64 [ 2, %integer ], [ 3, %float ]
  br i1 %with_axes, label %keep, label %literal
literal:
  store ptr null, ptr %poperand
  %first = icmp eq i64 %numbers, 0
  br i1 %first, label %keep, label %refuse
keep:
  %word = phi i64 [ %walk, %enlist ], [ %figure, %number ], [ %figure, %literal ]
  %mark = phi i64 [ 1, %enlist ], [ %code, %number ], [ %code, %literal ]
  %element = phi i64 [ %own_element, %enlist ], [ %shared, %number ], [ %shared, %literal ]
  %step = phi i64 [ 1, %enlist ], [ 0, %number ], [ 1, %literal ]
  %literals = phi i64 [ 0, %enlist ], [ 0, %number ], [ 1, %literal ]
  %grown = add i64 %found, %step
  %counted = add i64 %numbers, %literals
  %shifted = shl i64 %kind, 2
  %marked = add i64 %shifted, %mark
  %place = add i64 %at, 3
  %pword = getelementptr i64, ptr %keys, i64 %place
  store i64 %word, ptr %pword
  %following = add i64 %at, 1
  br label %next
done:
  store i64 %kind, ptr %keys
  store i64 %shared, ptr %pelement
  ret i64 %found
refuse:
  ret i64 0
}

; Where the call of a key lies, or null, and where it would: at an empty place of its set, else at any; and what tells keys apart.
define internal { ptr, ptr, i64 } @find(ptr %words, ptr %keys) {
entry:
  %calls = call i64 @word(ptr %words, i64 9)
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
  %there = insertvalue { ptr, ptr, i64 } zeroinitializer, ptr %entry_at, 0
  %both = insertvalue { ptr, ptr, i64 } %there, ptr %entry_at, 1
  ret { ptr, ptr, i64 } %both
miss:
  %skipped = shl i64 %open, 6
  %place = getelementptr i8, ptr %ways, i64 %skipped
  %pending = insertvalue { ptr, ptr, i64 } zeroinitializer, ptr %place, 1
  %told_apart = insertvalue { ptr, ptr, i64 } %pending, i64 %product, 2
  ret { ptr, ptr, i64 } %told_apart
}

; remember(index, kept, number, operand, argument, ...), a method of a `launch`'s tuple: calls with such arguments walk its program
; from now on. The number is the tensor that a number beside tensors stands for, or None. What is kept holds the objects of
; the key, so that no others come to lie there, and the program.
define ptr @remember(ptr %self, ptr %arguments, i64 %count) {
entry:
  %keys = alloca [5 x i64]
  %operands = alloca [3 x ptr]
  %pkept = getelementptr ptr, ptr %arguments, i64 1
  %pnumber = getelementptr ptr, ptr %arguments, i64 2
  %pleader = getelementptr ptr, ptr %arguments, i64 3
  %rest = getelementptr ptr, ptr %arguments, i64 4
  %kept = load ptr, ptr %pkept
  %number = load ptr, ptr %pnumber
  %leader = load ptr, ptr %pleader
  %others = sub i64 %count, 4
  %index = call i64 @integer(ptr %arguments, i64 0)
  %words = load ptr, ptr @known
  %found = call i64 @key(ptr %words, i64 %index, ptr %leader, ptr %rest, i64 %others, ptr %keys, ptr %operands)
  %none = icmp eq i64 %found, 0
  br i1 %none, label %leave, label %search
search:
  %places = call { ptr, ptr, i64 } @find(ptr %words, ptr %keys)
  %place = extractvalue { ptr, ptr, i64 } %places, 1
  %program = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %address = call ptr @PyLong_AsVoidPtr(ptr %program)
  %pprogram = getelementptr i64, ptr %place, i64 5
  %pheld = getelementptr i64, ptr %place, i64 6
  %pconstant = getelementptr i64, ptr %place, i64 7
  %was = load ptr, ptr %pheld
  %key = load [5 x i64], ptr %keys
  store [5 x i64] %key, ptr %place
  store ptr %address, ptr %pprogram
  store ptr %kept, ptr %pheld
  store ptr %number, ptr %pconstant
  call void @Py_IncRef(ptr %kept)
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

; A method: computes a known call, and leaves any other to Python: it is remembered when it is met again, so that numbers and
; views that come once push nothing out.
define internal ptr @call(ptr %self, ptr %arguments, i64 %count, ptr %names, i64 %index) noinline {
entry:
  %keys = alloca [5 x i64]
  %operands = alloca [3 x ptr]
  %near = alloca [16 x ptr]
  %words = load ptr, ptr @known
  %plain = icmp eq ptr %names, null
  br i1 %plain, label %look, label %refuse
look:
  %given = call i64 @key(ptr %words, i64 %index, ptr %self, ptr %arguments, i64 %count, ptr %keys, ptr %operands)
  %other = icmp eq i64 %given, 0
  br i1 %other, label %refuse, label %search
search:
  %places = call { ptr, ptr, i64 } @find(ptr %words, ptr %keys)
  %place = extractvalue { ptr, ptr, i64 } %places, 0
  %new = icmp eq ptr %place, null
  br i1 %new, label %meet, label %guard
meet:
  %mark = extractvalue { ptr, ptr, i64 } %places, 2
  %calls = call i64 @word(ptr %words, i64 9)
  %table = inttoptr i64 %calls to ptr
  %high = lshr i64 %mark, 44
  %seat = and i64 %high, 1023
  %behind_all = add i64 %seat, 8192
  %pmet = getelementptr i64, ptr %table, i64 %behind_all
  %met = load i64, ptr %pmet
  store i64 %mark, ptr %pmet
  %again = icmp eq i64 %met, %mark
  %remembers = zext i1 %again to i64
  br label %python
guard:
  %pprogram = getelementptr i64, ptr %place, i64 5
  %program = load ptr, ptr %pprogram
  %usual = call i1 @usual(ptr %program)
  br i1 %usual, label %run, label %refuse
run:
  %pheld = getelementptr i64, ptr %place, i64 6
  %pconstant = getelementptr i64, ptr %place, i64 7
  %held = load ptr, ptr %pheld
  %constant = load ptr, ptr %pconstant
  call void @Py_IncRef(ptr %held)
  br label %fill
fill:
  %at = phi i64 [ 0, %run ], [ %following, %fill ]
  %poperand = getelementptr ptr, ptr %operands, i64 %at
  %operand = load ptr, ptr %poperand
  %number = icmp eq ptr %operand, null
  %filled = select i1 %number, ptr %constant, ptr %operand
  store ptr %filled, ptr %poperand
  %following = add i64 %at, 1
  %filling = icmp slt i64 %following, %given
  br i1 %filling, label %fill, label %filled_all
filled_all:
  %turning = call i64 @word(ptr %words, i64 7)
  %axial = call i64 @word(ptr %words, i64 8)
  %late = icmp sge i64 %index, %turning
  %early = icmp slt i64 %index, %axial
  %turned = and i1 %late, %early
  br i1 %turned, label %turn, label %compute
turn:
  %psecond = getelementptr ptr, ptr %operands, i64 1
  %left = load ptr, ptr %operands
  %right = load ptr, ptr %psecond
  store ptr %right, ptr %operands
  store ptr %left, ptr %psecond
  br label %compute
compute:
  %made = call ptr @compute(ptr %program, ptr %operands, i64 %given)
  call void @Py_DecRef(ptr %held)
  %failed = icmp eq ptr %made, null
  br i1 %failed, label %doubt, label %done
done:
  ret ptr %made
doubt:
  %passes = call i1 @unread()
  br i1 %passes, label %clear, label %raise
clear:
  call void @PyErr_Clear()
  br label %refuse
refuse:
  br label %python
python:
  %learns = phi i64 [ %remembers, %meet ], [ 0, %refuse ]
  %twice = shl i64 %index, 1
  %behind = add i64 %twice, 10
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
  %many = icmp sgt i64 %room, 16
  br i1 %many, label %allocate, label %arrange
allocate:
  %space = shl i64 %room, 3
  %far = call ptr @PyMem_Malloc(i64 %space)
  %full = icmp eq ptr %far, null
  br i1 %full, label %exhausted, label %arrange
exhausted:
  %nothing = call ptr @PyErr_NoMemory()
  br label %raise
arrange:
  %taken = phi ptr [ null, %copy ], [ %far, %allocate ]
  %spare = phi ptr [ %near, %copy ], [ %far, %allocate ]
  %array = getelementptr ptr, ptr %spare, i64 1
  store ptr %self, ptr %array
  %rest = getelementptr ptr, ptr %array, i64 1
  %others = sub i64 %all, 1
  %bytes = shl i64 %others, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %rest, ptr %arguments, i64 %bytes, i1 false)
  %flagged = or i64 %passed, -9223372036854775808
  %result = call ptr @PyObject_Vectorcall(ptr %function, ptr %array, i64 %flagged, ptr %names)
  call void @PyMem_Free(ptr %taken)
  ret ptr %result
raise:
  ret ptr null
}

; Whether the exception says that an operand could not be read, which Python does in other ways; any other, as an interrupt, stands.
define internal i1 @unread() {
entry:
  br label %next
next:
  %at = phi i64 [ 0, %entry ], [ %following, %compare ]
  %pclass = getelementptr [4 x ptr], ptr @unreadable, i64 0, i64 %at
  %more = icmp slt i64 %at, 4
  br i1 %more, label %compare, label %none
compare:
  %place = load ptr, ptr %pclass
  %class = load ptr, ptr %place
  %matches = call i32 @PyErr_ExceptionMatches(ptr %class)
  %following = add i64 %at, 1
  %is = icmp ne i32 %matches, 0
  br i1 %is, label %found, label %next
found:
  ret i1 true
none:
  ret i1 false
}
@unreadable = internal constant [4 x ptr] [ptr @PyExc_TypeError, ptr @PyExc_BufferError, ptr @PyExc_ValueError, ptr @PyExc_OverflowError]

; Whether the variables have the values under which a program may be walked at once.
define internal i1 @usual(ptr %words) {
entry:
  %variable = call i64 @word(ptr %words, i64 8)
  %value = call i64 @word(ptr %words, i64 9)
  %second = call i64 @word(ptr %words, i64 10)
  %other = call i64 @word(ptr %words, i64 11)
  %first = call i1 @guarded(i64 %variable, i64 %value)
  br i1 %first, label %watch, label %refuse
watch:
  %both = call i1 @guarded(i64 %second, i64 %other)
  ret i1 %both
refuse:
  ret i1 false
}

define ptr @call0(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 0) ret ptr %r }
define ptr @call1(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 1) ret ptr %r }
define ptr @call2(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 2) ret ptr %r }
define ptr @call3(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 3) ret ptr %r }
define ptr @call4(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 4) ret ptr %r }
define ptr @call5(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 5) ret ptr %r }
define ptr @call6(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 6) ret ptr %r }
define ptr @call7(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 7) ret ptr %r }
define ptr @call8(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 8) ret ptr %r }
define ptr @call9(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 9) ret ptr %r }
define ptr @call10(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 10) ret ptr %r }
define ptr @call11(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 11) ret ptr %r }
define ptr @call12(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 12) ret ptr %r }
define ptr @call13(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 13) ret ptr %r }
define ptr @call14(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 14) ret ptr %r }
define ptr @call15(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 15) ret ptr %r }
define ptr @call16(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 16) ret ptr %r }
define ptr @call17(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 17) ret ptr %r }
define ptr @call18(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 18) ret ptr %r }
define ptr @call19(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 19) ret ptr %r }
define ptr @call20(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 20) ret ptr %r }
define ptr @call21(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 21) ret ptr %r }
define ptr @call22(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 22) ret ptr %r }
define ptr @call23(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 23) ret ptr %r }
define ptr @call24(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 24) ret ptr %r }
define ptr @call25(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 25) ret ptr %r }
define ptr @call26(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 26) ret ptr %r }
define ptr @call27(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 27) ret ptr %r }
define ptr @call28(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 28) ret ptr %r }
define ptr @call29(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 29) ret ptr %r }
define ptr @call30(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 30) ret ptr %r }
define ptr @call31(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 31) ret ptr %r }
define ptr @call32(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 32) ret ptr %r }
define ptr @call33(ptr %s, ptr %a, i64 %n, ptr %k) { %r = tail call ptr @call(ptr %s, ptr %a, i64 %n, ptr %k, i64 33) ret ptr %r }

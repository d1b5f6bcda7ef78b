; Runs of a plan: `idle` finds memory that nobody holds, `begin` puts what a run is fed in place, `finish` walks and makes the run.
; The words of `idle` and `begin`: how arrays are read (see @start); None, the classes of floats and of dictionaries, the name of
; the method that memory and feeds of other kinds are left to, True, the class of tensors, those of errors that refuse a buffer;
; where the slots of frames, tensors and layouts lie. Those of `finish` are below.

; The first entry of a list that nothing but the list refers to, nor to its memory but the entry itself: a new reference; null
; where there is none. How often that is referred to then is what the entry says of itself (`alone`): who counted instead
; would count whoever else looks at a new entry.
define internal ptr @free(ptr %words, ptr %entries) {
entry:
  %alone_at = call i64 @word(ptr %words, i64 10)
  %memory_at = call i64 @word(ptr %words, i64 11)
  %length = call i64 @PyList_Size(ptr %entries)
  br label %next
next:
  %at = phi i64 [ 0, %entry ], [ %following, %busy ]
  %more = icmp slt i64 %at, %length
  br i1 %more, label %look, label %none_left
look:
  %candidate = call ptr @PyList_GetItem(ptr %entries, i64 %at)
  %pmemory = getelementptr i8, ptr %candidate, i64 %memory_at
  %palone = getelementptr i8, ptr %candidate, i64 %alone_at
  %memory = load ptr, ptr %pmemory
  %counted = load ptr, ptr %palone
  %own = load i32, ptr %candidate
  %parts = load i32, ptr %memory
  %sum = add i32 %own, %parts
  %references = zext i32 %sum to i64
  %alone = call i64 @PyLong_AsLongLong(ptr %counted)
  %idle = icmp eq i64 %references, %alone
  br i1 %idle, label %lend, label %busy
busy:
  %following = add i64 %at, 1
  br label %next
lend:
  call void @Py_IncRef(ptr %candidate)
  ret ptr %candidate
none_left:
  ret ptr null
}

; idle(entries) -> an entry, or None
define ptr @idle(ptr %self, ptr %arguments, i64 %count) {
  %boxed = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %words = call ptr @PyLong_AsVoidPtr(ptr %boxed)
  %entries = load ptr, ptr %arguments
  %found = call ptr @free(ptr %words, ptr %entries)
  %missing = icmp eq ptr %found, null
  br i1 %missing, label %nothing, label %lend
lend:
  ret ptr %found
nothing:
  %pnone = getelementptr ptr, ptr %words, i64 2
  %none = load ptr, ptr %pnone
  call void @Py_IncRef(ptr %none)
  ret ptr %none
}

; Puts the object into a slot in place of what was there.
define internal void @put(ptr %object, i64 %slot, ptr %value) {
  %place = getelementptr i8, ptr %object, i64 %slot
  %was = load ptr, ptr %place
  store ptr %value, ptr %place
  call void @Py_IncRef(ptr %value)
  call void @Py_DecRef(ptr %was)
  ret void
}

; begin(lowered, frames, order, feeds) -> a frame in which all inputs are in place; None where feeds name others than the order.
; An order: the symbols; their sources, and those of inputs that are not fed; the address of the addresses of their patterns;
; the bits of what lies in rooms; the payloads of what is not fed. A pattern says what is taken: the format, the count of
; extents and the bytes of an array, the offset of the room that it is copied into (-1: it is read where it lies; -2: it is
; not taken), its bank, its dtype; the element of a tensor and its bytes; the extents. Memory of other classes than NumPy's may
; move while a run reads it. A room for one number of f32 or f64 takes a `float` too. What native code does not take, the
; method `take` of `lowered` does.
define ptr @begin(ptr %self, ptr %arguments, i64 %count) {
entry:
  %boxed = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %words = call ptr @PyLong_AsVoidPtr(ptr %boxed)
  %class = call i64 @word(ptr %words, i64 0)
  %head = call i64 @word(ptr %words, i64 1)
  %none = call i64 @word(ptr %words, i64 2)
  %float = call i64 @word(ptr %words, i64 3)
  %dict = call i64 @word(ptr %words, i64 4)
  %take = call i64 @word(ptr %words, i64 5)
  %yes = call i64 @word(ptr %words, i64 6)
  %tensor = call i64 @word(ptr %words, i64 7)
  %refusals = call i64 @word(ptr %words, i64 8)
  %address_at = call i64 @word(ptr %words, i64 9)
  %alone_at = call i64 @word(ptr %words, i64 10)
  %memory_at = call i64 @word(ptr %words, i64 11)
  %table_at = call i64 @word(ptr %words, i64 12)
  %fed_at = call i64 @word(ptr %words, i64 13)
  %held_at = call i64 @word(ptr %words, i64 14)
  %tensors_at = call i64 @word(ptr %words, i64 15)
  %element_at = call i64 @word(ptr %words, i64 16)
  %buffer_at = call i64 @word(ptr %words, i64 17)
  %layout_at = call i64 @word(ptr %words, i64 18)
  %shape_at = call i64 @word(ptr %words, i64 19)
  %offset_at = call i64 @word(ptr %words, i64 20)
  %dense_at = call i64 @word(ptr %words, i64 21)
  %pframes = getelementptr ptr, ptr %arguments, i64 1
  %porder = getelementptr ptr, ptr %arguments, i64 2
  %pfeeds = getelementptr ptr, ptr %arguments, i64 3
  %lowered = load ptr, ptr %arguments
  %frames = load ptr, ptr %pframes
  %order = load ptr, ptr %porder
  %feeds = load ptr, ptr %pfeeds
  %nothing = inttoptr i64 %none to ptr
  %position = alloca i64
  %pkey = alloca ptr
  %pvalue = alloca ptr
  %view = alloca [16 x i64], align 8
  %call = alloca [5 x ptr], align 8
  store i64 0, ptr %position
  %pof_feeds = getelementptr i8, ptr %feeds, i64 %head
  %pkind = getelementptr i64, ptr %pof_feeds, i64 -1
  %kind = load i64, ptr %pkind
  %is_dict = icmp eq i64 %kind, %dict
  %ordered = icmp ne ptr %order, %nothing
  %known = and i1 %is_dict, %ordered
  br i1 %known, label %sized, label %other
sized:
  %keys = call ptr @PyTuple_GetItem(ptr %order, i64 0)
  %sources = call ptr @PyTuple_GetItem(ptr %order, i64 1)
  %boxed_patterns = call ptr @PyTuple_GetItem(ptr %order, i64 2)
  %bits = call ptr @PyTuple_GetItem(ptr %order, i64 3)
  %payloads = call ptr @PyTuple_GetItem(ptr %order, i64 4)
  %patterns = call ptr @PyLong_AsVoidPtr(ptr %boxed_patterns)
  %wanted = call i64 @PyTuple_Size(ptr %keys)
  %size = call i64 @PyDict_Size(ptr %feeds)
  %total = call i64 @PyTuple_Size(ptr %sources)
  %as_many = icmp eq i64 %wanted, %size
  br i1 %as_many, label %gather, label %other
gather:
  %data = alloca ptr, i64 %total
  br label %pair
pair:
  %gathered = phi i64 [ 0, %gather ], [ %collected, %same ]
  %pdatum0 = getelementptr ptr, ptr %data, i64 %gathered
  %left = icmp slt i64 %gathered, %wanted
  br i1 %left, label %read, label %rest
read:
  %there = call i32 @PyDict_Next(ptr %feeds, ptr %position, ptr %pkey, ptr %pvalue)
  %found = icmp ne i32 %there, 0
  br i1 %found, label %compare, label %release_some
compare:
  %key = load ptr, ptr %pkey
  %value = load ptr, ptr %pvalue
  store ptr %value, ptr %pdatum0
  call void @Py_IncRef(ptr %value)
  %collected = add i64 %gathered, 1
  %expected = call ptr @PyTuple_GetItem(ptr %keys, i64 %gathered)
  %identical = icmp eq ptr %key, %expected
  br i1 %identical, label %same, label %ask
ask:
  call void @Py_IncRef(ptr %key)
  %equal = call i32 @PyObject_RichCompareBool(ptr %expected, ptr %key, i32 2)
  call void @Py_DecRef(ptr %key)
  %raised = icmp slt i32 %equal, 0
  br i1 %raised, label %release_some, label %answered
answered:
  %alike = icmp sgt i32 %equal, 0
  br i1 %alike, label %same, label %release_some
same:
  br label %pair
rest:
  %at_rest = phi i64 [ %wanted, %pair ], [ %next_rest, %add ]
  %lacking = icmp slt i64 %at_rest, %total
  br i1 %lacking, label %add, label %frame
add:
  %absent = sub i64 %at_rest, %wanted
  %payload = call ptr @PyTuple_GetItem(ptr %payloads, i64 %absent)
  %pdatum1 = getelementptr ptr, ptr %data, i64 %at_rest
  store ptr %payload, ptr %pdatum1
  call void @Py_IncRef(ptr %payload)
  %next_rest = add i64 %at_rest, 1
  br label %rest

frame:
  %method = inttoptr i64 %take to ptr
  %lent = call ptr @free(ptr %words, ptr %frames)
  %empty = icmp eq ptr %lent, null
  br i1 %empty, label %make, label %have
make:
  store ptr %frames, ptr %call
  %made = call ptr @PyObject_VectorcallMethod(ptr %method, ptr %call, i64 1, ptr null)
  %failed = icmp eq ptr %made, null
  br i1 %failed, label %release_all, label %have
have:
  %chosen = phi ptr [ %lent, %frame ], [ %made, %make ]
  %paddress = getelementptr i8, ptr %chosen, i64 %address_at
  %ptable = getelementptr i8, ptr %chosen, i64 %table_at
  %pheld = getelementptr i8, ptr %chosen, i64 %held_at
  %boxed_address = load ptr, ptr %paddress
  %boxed_table = load ptr, ptr %ptable
  %held = load ptr, ptr %pheld
  %base = call i64 @PyLong_AsLongLong(ptr %boxed_address)
  %table = call ptr @PyLong_AsVoidPtr(ptr %boxed_table)
  call void @let_go(ptr %held)
  call void @put(ptr %chosen, i64 %fed_at, ptr %bits)
  call void @put(ptr %chosen, i64 %tensors_at, ptr %nothing)
  %pitem = getelementptr i8, ptr %view, i64 24
  %prank = getelementptr i8, ptr %view, i64 36
  %pformat = getelementptr i8, ptr %view, i64 40
  %pshape = getelementptr i8, ptr %view, i64 48
  br label %next

next:
  %at = phi i64 [ 0, %have ], [ %following, %placed ]
  %more = icmp slt i64 %at, %total
  br i1 %more, label %look, label %done
look:
  %pdatum = getelementptr ptr, ptr %data, i64 %at
  %datum = load ptr, ptr %pdatum
  %ppattern = getelementptr ptr, ptr %patterns, i64 %at
  %pattern = load ptr, ptr %ppattern
  %pcount = getelementptr i64, ptr %pattern, i64 1
  %plength = getelementptr i64, ptr %pattern, i64 2
  %proom = getelementptr i64, ptr %pattern, i64 3
  %pbank = getelementptr i64, ptr %pattern, i64 4
  %pdtype = getelementptr i64, ptr %pattern, i64 5
  %pkind_of = getelementptr i64, ptr %pattern, i64 6
  %psize = getelementptr i64, ptr %pattern, i64 7
  %pextents = getelementptr i64, ptr %pattern, i64 8
  %format = load i64, ptr %pattern
  %rank = load i64, ptr %pcount
  %length = load i64, ptr %plength
  %room = load i64, ptr %proom
  %bank = load i64, ptr %pbank
  %dtype = load i64, ptr %pdtype
  %roomy = icmp sge i64 %room, 0
  %target = getelementptr i8, ptr %table, i64 %room
  %inside = add i64 %base, %room
  %pword = getelementptr i64, ptr %table, i64 %bank
  %pbehind = getelementptr i8, ptr %datum, i64 %head
  %ptype = getelementptr i64, ptr %pbehind, i64 -1
  %type = load i64, ptr %ptype
  %float_given = icmp eq i64 %type, %float
  br i1 %float_given, label %number, label %object
number:
  %single = icmp eq i64 %rank, 0
  %welcome = and i1 %single, %roomy
  br i1 %welcome, label %which, label %leave
which:
  %double = call double @PyFloat_AsDouble(ptr %datum)
  switch i64 %format, label %leave [ i64 102, label %narrow
                                     i64 100, label %wide ]
narrow:
  %rounded = fptrunc double %double to float
  store float %rounded, ptr %target
  br label %roomed
wide:
  store double %double, ptr %target
  br label %roomed
object:
  %is_array = icmp eq i64 %type, %class
  br i1 %is_array, label %array, label %maybe
maybe:
  %is_tensor = icmp eq i64 %type, %tensor
  br i1 %is_tensor, label %tensor_given, label %buffered
tensor_given:
  %pown_kind = getelementptr i8, ptr %datum, i64 %element_at
  %pown_buffer = getelementptr i8, ptr %datum, i64 %buffer_at
  %pown_layout = getelementptr i8, ptr %datum, i64 %layout_at
  %own_kind = load i64, ptr %pown_kind
  %kind_of = load i64, ptr %pkind_of
  %own_buffer = load ptr, ptr %pown_buffer
  %own_layout = load ptr, ptr %pown_layout
  %kindred = icmp eq i64 %own_kind, %kind_of
  %has_buffer = icmp ne ptr %own_buffer, null
  %has_layout = icmp ne ptr %own_layout, null
  %half_made = and i1 %has_buffer, %has_layout
  %made_well = and i1 %half_made, %kindred
  br i1 %made_well, label %laid, label %leave
laid:
  %pown_shape = getelementptr i8, ptr %own_layout, i64 %shape_at
  %pown_offset = getelementptr i8, ptr %own_layout, i64 %offset_at
  %pown_dense = getelementptr i8, ptr %own_layout, i64 %dense_at
  %own_shape = load ptr, ptr %pown_shape
  %own_offset = load ptr, ptr %pown_offset
  %own_dense = load i64, ptr %pown_dense
  %dense = icmp eq i64 %own_dense, %yes
  %own_rank = call i64 @PyTuple_Size(ptr %own_shape)
  %rank_fits = icmp eq i64 %own_rank, %rank
  %pmemory = getelementptr i8, ptr %own_buffer, i64 %head
  %pmemory_class = getelementptr i64, ptr %pmemory, i64 -1
  %memory_class = load i64, ptr %pmemory_class
  %firm = icmp eq i64 %memory_class, %class
  %even = and i1 %dense, %rank_fits
  %readable = and i1 %even, %firm
  br i1 %readable, label %flagged, label %leave
flagged:
  %pmemory_flags = getelementptr i64, ptr %pmemory, i64 6
  %memory_flags = load i32, ptr %pmemory_flags
  %memory_kept = and i32 %memory_flags, 257
  %one_piece = icmp eq i32 %memory_kept, 257
  br i1 %one_piece, label %side, label %leave
side:
  %axis_there = phi i64 [ 0, %flagged ], [ %axis_after, %check ]
  %unchecked = icmp slt i64 %axis_there, %rank
  br i1 %unchecked, label %check, label %inner
check:
  %boxed_extent = call ptr @PyTuple_GetItem(ptr %own_shape, i64 %axis_there)
  %own_extent = call i64 @PyLong_AsLongLong(ptr %boxed_extent)
  %pwanted_extent = getelementptr i64, ptr %pextents, i64 %axis_there
  %wanted_extent = load i64, ptr %pwanted_extent
  %axis_after = add i64 %axis_there, 1
  %extents_agree = icmp eq i64 %own_extent, %wanted_extent
  br i1 %extents_agree, label %side, label %leave
inner:
  %elements = call i64 @PyLong_AsLongLong(ptr %own_offset)
  %size_of = load i64, ptr %psize
  %skipped = mul i64 %elements, %size_of
  %memory_start = load i64, ptr %pmemory
  %tensor_start = add i64 %memory_start, %skipped
  br label %matched

array:
  %pdimensions = getelementptr i64, ptr %pbehind, i64 2
  %pdescription = getelementptr i64, ptr %pbehind, i64 5
  %paxes = getelementptr i64, ptr %pbehind, i64 1
  %pflags = getelementptr i64, ptr %pbehind, i64 6
  %start = load i64, ptr %pbehind
  %axes_here = load i32, ptr %paxes
  %dimensions = load ptr, ptr %pdimensions
  %description = load i64, ptr %pdescription
  %flags = load i32, ptr %pflags
  %kept = and i32 %flags, 257
  %whole = icmp eq i32 %kept, 257
  %of_kind = icmp eq i64 %description, %dtype
  %axes_wide = zext i32 %axes_here to i64
  %flat = icmp eq i64 %axes_wide, %rank
  %form = and i1 %whole, %of_kind
  %fits = and i1 %form, %flat
  br i1 %fits, label %dimension, label %buffered
dimension:
  %axis_here = phi i64 [ 0, %array ], [ %axis_next, %measure ]
  %unmeasured = icmp slt i64 %axis_here, %rank
  br i1 %unmeasured, label %measure, label %matched
measure:
  %phas = getelementptr i64, ptr %dimensions, i64 %axis_here
  %has = load i64, ptr %phas
  %pneeds = getelementptr i64, ptr %pextents, i64 %axis_here
  %needs = load i64, ptr %pneeds
  %axis_next = add i64 %axis_here, 1
  %agreed = icmp eq i64 %has, %needs
  br i1 %agreed, label %dimension, label %leave
matched:
  %first_byte = phi i64 [ %start, %dimension ], [ %tensor_start, %inner ]
  %lies = inttoptr i64 %first_byte to ptr
  br i1 %roomy, label %copy_array, label %lend
copy_array:
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %lies, i64 %length, i1 false)
  br label %roomed
lend:
  %lendable = icmp eq i64 %room, -1
  br i1 %lendable, label %point, label %leave
point:
  store i64 %first_byte, ptr %pword
  %appended = call i32 @PyList_Append(ptr %held, ptr %datum)
  %unheld = icmp ne i32 %appended, 0
  br i1 %unheld, label %fail, label %placed

buffered:
  %lettered = icmp ne i64 %format, 0
  %wanted_so = and i1 %roomy, %lettered
  br i1 %wanted_so, label %buffer, label %leave
buffer:
  %status = call i32 @PyObject_GetBuffer(ptr %datum, ptr %view, i32 60)
  %refused = icmp ne i32 %status, 0
  br i1 %refused, label %clear, label %inspect
clear:
  %refusing = inttoptr i64 %refusals to ptr
  %refusal = call i32 @PyErr_ExceptionMatches(ptr %refusing)
  %expected_so = icmp ne i32 %refusal, 0
  br i1 %expected_so, label %forgive, label %fail
forgive:
  call void @PyErr_Clear()
  br label %leave
inspect:
  %letters = load ptr, ptr %pformat
  %letter16 = load i16, ptr %letters, align 1
  %letter = zext i16 %letter16 to i64
  %rank32 = load i32, ptr %prank
  %axes = zext i32 %rank32 to i64
  %item = load i64, ptr %pitem
  %item_wanted = load i64, ptr %psize
  %sized_alike = icmp eq i64 %item, %item_wanted
  %spelled = icmp eq i64 %letter, %format
  %ranked = icmp eq i64 %axes, %rank
  %written = and i1 %spelled, %sized_alike
  %kin = and i1 %written, %ranked
  %shape = load ptr, ptr %pshape
  br i1 %kin, label %extents, label %different
extents:
  %axis = phi i64 [ 0, %inspect ], [ %beyond, %extent ]
  %unread = icmp slt i64 %axis, %rank
  br i1 %unread, label %extent, label %copy
extent:
  %pown = getelementptr i64, ptr %shape, i64 %axis
  %own = load i64, ptr %pown
  %pneeded = getelementptr i64, ptr %pextents, i64 %axis
  %needed = load i64, ptr %pneeded
  %beyond = add i64 %axis, 1
  %agree = icmp eq i64 %own, %needed
  br i1 %agree, label %extents, label %different
copy:
  %memory = load ptr, ptr %view
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %memory, i64 %length, i1 false)
  call void @PyBuffer_Release(ptr %view)
  br label %roomed
different:
  call void @PyBuffer_Release(ptr %view)
  br label %leave

leave:
  %source = call ptr @PyTuple_GetItem(ptr %sources, i64 %at)
  %pfirst = getelementptr ptr, ptr %call, i64 1
  %psecond = getelementptr ptr, ptr %call, i64 2
  %pthird = getelementptr ptr, ptr %call, i64 3
  store ptr %lowered, ptr %call
  store ptr %chosen, ptr %pfirst
  store ptr %source, ptr %psecond
  store ptr %datum, ptr %pthird
  %taken = call ptr @PyObject_VectorcallMethod(ptr %method, ptr %call, i64 4, ptr null)
  %wrong = icmp eq ptr %taken, null
  br i1 %wrong, label %fail, label %took
took:
  call void @Py_DecRef(ptr %taken)
  br label %placed
roomed:
  store i64 %inside, ptr %pword
  br label %placed
placed:
  %following = add i64 %at, 1
  br label %next

fail:
  call void @let_go(ptr %held)
  call void @Py_DecRef(ptr %chosen)
  br label %release_all
done:
  br label %release_all
release_some:
  %some = phi i64 [ %gathered, %read ], [ %collected, %ask ], [ %collected, %answered ]
  %result_some = phi ptr [ %nothing, %read ], [ null, %ask ], [ %nothing, %answered ]
  br label %drop
release_all:
  %result_all = phi ptr [ null, %make ], [ null, %fail ], [ %chosen, %done ]
  br label %drop
drop:
  %until = phi i64 [ %some, %release_some ], [ %total, %release_all ]
  %result = phi ptr [ %result_some, %release_some ], [ %result_all, %release_all ]
  br label %each
each:
  %dropping = phi i64 [ 0, %drop ], [ %dropped, %one ]
  %any = icmp slt i64 %dropping, %until
  br i1 %any, label %one, label %answer
one:
  %pold = getelementptr ptr, ptr %data, i64 %dropping
  %old = load ptr, ptr %pold
  call void @Py_DecRef(ptr %old)
  %dropped = add i64 %dropping, 1
  br label %each
answer:
  %is_none = icmp eq ptr %result, %nothing
  br i1 %is_none, label %other, label %give
give:
  ret ptr %result
other:
  call void @Py_IncRef(ptr %nothing)
  ret ptr %nothing
}

; Empties a list.
define internal void @let_go(ptr %list) {
entry:
  %length = call i64 @PyList_Size(ptr %list)
  %empty = icmp eq i64 %length, 0
  br i1 %empty, label %leave, label %clear
clear:
  call i32 @PyList_SetSlice(ptr %list, i64 0, i64 %length, ptr null)
  br label %leave
leave:
  ret void
}

; finish(lowered, frame, parameters, schedule) -> the run; None where Python has to walk, or to say which error was reported.
; The words: how arrays are read, how the program is walked (`runtime.walking`); the bank of the table; None, the classes of
; tables, and of what is made; where the slots of tables, frames, and of what is made lie.
define ptr @finish(ptr %self, ptr %arguments, i64 %count) {
entry:
  %boxed = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %words = call ptr @PyLong_AsVoidPtr(ptr %boxed)
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
  %bank = call i64 @word(ptr %words, i64 12)
  %none = call i64 @word(ptr %words, i64 13)
  %tables = call i64 @word(ptr %words, i64 14)
  %bound = call i64 @word(ptr %words, i64 15)
  %ran = call i64 @word(ptr %words, i64 16)
  %buffer_at = call i64 @word(ptr %words, i64 17)
  %address_at = call i64 @word(ptr %words, i64 18)
  %held_at = call i64 @word(ptr %words, i64 19)
  %tensors_at = call i64 @word(ptr %words, i64 20)
  %lowered_at = call i64 @word(ptr %words, i64 21)
  %parameters_at = call i64 @word(ptr %words, i64 22)
  %fed_at = call i64 @word(ptr %words, i64 23)
  %frame_at = call i64 @word(ptr %words, i64 24)
  %source_at = call i64 @word(ptr %words, i64 25)
  %schedule_at = call i64 @word(ptr %words, i64 26)
  %pframe = getelementptr ptr, ptr %arguments, i64 1
  %pparameters = getelementptr ptr, ptr %arguments, i64 2
  %pschedule = getelementptr ptr, ptr %arguments, i64 3
  %lowered = load ptr, ptr %arguments
  %frame = load ptr, ptr %pframe
  %parameters = load ptr, ptr %pparameters
  %schedule = load ptr, ptr %pschedule
  %nothing = inttoptr i64 %none to ptr
  %pbehind = getelementptr i8, ptr %parameters, i64 %head
  %pkind = getelementptr i64, ptr %pbehind, i64 -1
  %kind = load i64, ptr %pkind
  %exact = icmp eq i64 %kind, %tables
  br i1 %exact, label %share, label %python
share:
  %usual = call i1 @usual(ptr %words)
  br i1 %usual, label %gather, label %python
gather:
  %team = call { i64, i64, i64, i1 } @team(i64 %told, i64 %largest)
  %members = extractvalue { i64, i64, i64, i1 } %team, 0
  %threads = extractvalue { i64, i64, i64, i1 } %team, 1
  %grain = extractvalue { i64, i64, i64, i1 } %team, 2
  %there = extractvalue { i64, i64, i64, i1 } %team, 3
  br i1 %there, label %bring, label %raise
bring:
  %pbuffer = getelementptr i8, ptr %parameters, i64 %buffer_at
  %buffer = load ptr, ptr %pbuffer
  %bare = icmp eq ptr %buffer, null
  br i1 %bare, label %python, label %point
point:
  %numbers = call i64 @start(ptr %buffer, ptr %words)
  %paddress = getelementptr i8, ptr %frame, i64 %address_at
  %boxed_address = load ptr, ptr %paddress
  %banks = call i64 @PyLong_AsLongLong(ptr %boxed_address)
  %table = inttoptr i64 %banks to ptr
  %pplace = getelementptr i64, ptr %table, i64 %bank
  store i64 %numbers, ptr %pplace
  %unread = icmp eq i64 %numbers, 0
  br i1 %unread, label %raise, label %run
run:
  %at = call i64 @walk(i64 %execute, i64 %code, i64 %end, i64 %banks, i64 %members, i64 %threads, i64 %grain, i64 1, i64 0,
                       i64 %work)
  %reported = icmp sge i64 %at, 0
  br i1 %reported, label %python, label %make
make:
  %pheld = getelementptr i8, ptr %frame, i64 %held_at
  %held = load ptr, ptr %pheld
  call void @let_go(ptr %held)
  %bound_class = inttoptr i64 %bound to ptr
  %run_class = inttoptr i64 %ran to ptr
  %source = call ptr @PyType_GenericAlloc(ptr %bound_class, i64 0)
  %first_failed = icmp eq ptr %source, null
  br i1 %first_failed, label %raise, label %wrap
wrap:
  %made = call ptr @PyType_GenericAlloc(ptr %run_class, i64 0)
  %second_failed = icmp eq ptr %made, null
  br i1 %second_failed, label %drop, label %fill
fill:
  %ptensors = getelementptr i8, ptr %frame, i64 %tensors_at
  %tensors = load ptr, ptr %ptensors
  call void @set(ptr %source, i64 %lowered_at, ptr %lowered)
  call void @set(ptr %source, i64 %parameters_at, ptr %parameters)
  call void @set(ptr %source, i64 %fed_at, ptr %tensors)
  call void @set(ptr %source, i64 %frame_at, ptr %frame)
  call void @put(ptr %frame, i64 %tensors_at, ptr %nothing)
  call void @set(ptr %made, i64 %source_at, ptr %source)
  call void @set(ptr %made, i64 %schedule_at, ptr %schedule)
  call void @Py_DecRef(ptr %source)
  ret ptr %made
drop:
  call void @Py_DecRef(ptr %source)
  br label %raise
raise:
  ret ptr null
python:
  call void @Py_IncRef(ptr %nothing)
  ret ptr %nothing
}

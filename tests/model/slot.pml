// The slot protocol (src/dstorm/slot/layout.hpp) between one writer and two readers, for SPIN: each
// load and store of a shared word is a step. The writer sends K updates; anyone may die at any
// step.
//
// -DQUEUE: that policy, else LATEST. SPIN runs steps in one order for all: what a weaker ordering
// or a skipped step would let happen is a mutant, below, named by a macro. tests/model/run.py runs
// them all.
#ifndef K
#define K 4
#endif
#define TICKET(s, r) ticket[(s) * 2 + (r)]
#define COVERS(h, k) ((h) != 0 && (((h) & 1) -> ((k) >= ((h) >> 1)) : ((k) == ((h) >> 1))))

byte ticket[4];             // [slot][receiver]
byte head[2], tail[2];      // a payload of two words, by slot
byte consumed[2], hold[2];  // by receiver; a hold is iteration << 1 | open
byte clock;

// What no rank sees.
bool live[2] = true;
bool writer_lives = true, writer_is_done = false;
byte folded[2];  // the last by each receiver
byte given[2];   // the last whose ticket each receiver was given

// ---- the writer: SlotWriter ----
byte sent[2];  // the iteration in each slot, 0 if no ticket is left there
#define HOLDS_UP(r) (live[r] && (consumed[r] < sent[0] || consumed[r] < sent[1]))

#ifdef DEAD_BLOCK
#define AWAITED(s, r) (sent[s] != 0 && consumed[r] < sent[s])
#else
#define AWAITED(s, r) (sent[s] != 0 && consumed[r] < sent[s] && live[r])
#endif
#ifdef SECOND_READER_IGNORED
#define IS_FREE(s) (!AWAITED(s, 0))
#elif defined(NOBODY_AWAITED)
#define IS_FREE(s) true
#else
#define IS_FREE(s) (!AWAITED(s, 0) && !AWAITED(s, 1))
#endif

inline look_at_holds(s) {
  seen = hold[0];
  atomic { held = COVERS(seen, sent[s]) && AWAITED(s, 0); seen = 0 }
  seen = hold[1];
  atomic { held = held || (COVERS(seen, sent[s]) && AWAITED(s, 1)); seen = 0 }
}

// S4 (b)
inline revoke(s) {
  look_at_holds(s);
  if
  :: held
  :: else ->
#ifndef NO_REVOKE
    TICKET(s, 0) = 0;
    TICKET(s, 1) = 0;
#endif
#ifndef HOLDS_BEFORE_REVOKE  // no fence: the loads overtake the stores
    look_at_holds(s);
#endif
    if
    :: held ->
#ifndef NO_RESTORE
      TICKET(s, 0) = sent[s];
      TICKET(s, 1) = sent[s]
#else
      skip
#endif
    :: else -> sent[s] = 0; slot = s
    fi
  fi
}

inline claim() {
  slot = 2;
#ifdef QUEUE
  if  // nobody dead holds it up
  :: atomic { !IS_FREE(0) && !IS_FREE(1) -> assert(HOLDS_UP(0) || HOLDS_UP(1)) }
  :: IS_FREE(0) || IS_FREE(1)
  fi;
  if  // blocks; what is free stays so
  :: IS_FREE(0) -> slot = 0
  :: !IS_FREE(0) && IS_FREE(1) -> slot = 1
  fi
#else
  if
  :: IS_FREE(0) -> slot = 0
  :: else ->
    if
    :: IS_FREE(1) -> slot = 1
    :: else ->
      oldest = (sent[0] < sent[1] -> 0 : 1);
      revoke(oldest);
      if
      :: slot == 2 -> revoke(1 - oldest)
      :: else
      fi;
      oldest = 0
    fi
  fi
#endif
}

inline give_tickets() {
  atomic { TICKET(slot, 0) = k; given[0] = k }
  atomic { TICKET(slot, 1) = k; given[1] = k }
}

inline publish() {
#ifdef CLOCK_FIRST
  clock = k;
#endif
#ifdef TICKETS_FIRST  // no release: the payload's stores come after
  give_tickets();
#endif
  head[slot] = k;
  tail[slot] = k;
#ifndef TICKETS_FIRST
  give_tickets();
#endif
  sent[slot] = k;
  clock = k
}

proctype Writer() {
  byte k, slot, seen, oldest;
  bool held;
  {
    do
    :: k == K -> break
    :: else ->
      k++;
      claim();
      if
      :: slot == 2 -> clock = k  // LATEST: skipped
      :: else -> publish()
      fi
    od;
    writer_is_done = true
  } unless { !writer_lives }
}

// ---- a reader: SlotReader and Segment::collect_* ----

inline read(s) {
  assert(!live[me] || head[s] == found);  // not torn
  assert(!live[me] || tail[s] == found)
}

inline fold(s) {
#ifdef LET_GO_FIRST
  hold[me] = 0;
#endif
#ifdef CONSUME_FIRST
  consumed[me] = found;
#endif
  read(s);
  d_step {
    assert(found > folded[me]);  // not twice
#ifdef QUEUE
    assert(found == folded[me] + 1);  // nothing lost
#endif
    folded[me] = found
  }
#ifndef NEVER_CONSUMED
  consumed[me] = found
#endif
}

// The newest or oldest ticket in (after, limit].
inline look(s, is_better) {
  d_step {
    seen = TICKET(s, me);
    if
    :: seen > after && seen <= limit && (found == 0 || is_better) -> found = seen; at = s
    :: else
    fi;
    seen = 0
  }
}

inline gather_latest() {
#ifdef FIND_FIRST  // no fence: the loads overtake the store
  look(0, seen > found);
  look(1, seen > found);
  hold[me] = after * 2 + 3;
#else
  hold[me] = (after + 1) * 2 + 1;
  look(0, seen > found);
  look(1, seen > found);
#endif
  if
  :: found != 0 -> hold[me] = found * 2; fold(at)
  :: else
  fi;
  hold[me] = 0
}

inline gather_queue() {
  byte reached;
  reached = clock;
  look(0, seen < found);
  look(1, seen < found);
#ifndef ONE_LOOK
  if
  :: found != 0 ->
    limit = found - 1;
    look(0, seen < found);
    look(1, seen < found)
  :: else
  fi;
#endif
  assert(!live[me] || reached <= after || found != 0);  // S6
  if
  :: found != 0 -> fold(at)
  :: else
  fi;
  reached = 0
}

inline gather() {
  after = consumed[me];
  limit = K;
#ifdef QUEUE
  gather_queue();
#else
  gather_latest();
#endif
  d_step { found = 0; at = 0; after = 0; limit = 0 }
}

proctype Reader(byte me) {
  byte after, limit, seen, found, at;
  {
    do
    :: gather()
    :: writer_is_done || !writer_lives -> break
    od;
    gather();
#ifdef QUEUE
    do
    :: folded[me] < given[me] -> gather()
    :: else -> break
    od;
#else
    // Who dies may have taken its newest back.
    assert(!live[me] || !writer_is_done || folded[me] == given[me])
#endif
  } unless { !live[me] }
}

init {
  atomic { run Writer(); run Reader(0); run Reader(1) }
  if  // somebody dies, at some step
  :: writer_lives = writer_is_done
  :: live[1] = false
  :: skip
  fi
}

// Who writes which copy (src/dstorm/slot/copies.hpp), for SPIN: two ranks of a host, PLACES 0 and
// 1, are in turn the proxy of a sender of another host, by the links 1, 2, 3: place link % 2. A
// rank may stop at any step, for any time, as SPIN runs the steps of all in every order; it may go
// on after the next one has taken over, and it may die. Each copy has one slot. One receiver.
//
// -DQUEUE: that policy, else LATEST. tests/model/run.py also runs the mutants, named by macros.
#ifndef K
#define K 2
#endif
#ifndef LINKS
#define LINKS 3
#endif
#define PLACE(l) ((l) % 2)
#define COVERS(h, k) ((h) != 0 && (((h) & 1) -> ((k) >= ((h) >> 1)) : ((k) == ((h) >> 1))))

byte current_copy, current_link;  // one word
byte holder[2];                   // by copy: the link that holds it, 0 if none
byte clock[2], ticket[2];         // by copy
byte head[2], tail[2];            // a payload of two words
byte consumed, hold;

// What no rank sees.
bool live[2] = true;
byte folded, ended_links;

#ifdef STEAL  // the next proxy writes where the former did
#define IS_FREE(c) true
#else
#define IS_FREE(c) (holder[c] == 0 || PLACE(holder[c]) == place || !live[PLACE(holder[c])])
#endif

inline take() {
  do
  :: taken != 2 || link < wanted -> break
  :: else ->
    d_step { copy = current_copy; seen = current_link }
    if
    :: seen > link -> wanted = link + 1  // outdated
    :: else ->
      atomic {
        if
        :: IS_FREE(copy) -> holder[copy] = link; taken = copy
        :: else
        fi
      }
      if
      :: taken == 2 ->
        atomic {
          if
          :: IS_FREE(1 - copy) -> holder[1 - copy] = link; taken = 1 - copy
          :: else
          fi
        }
      :: else
      fi;
      if
      :: taken != 2 ->
        atomic {
          if
          :: current_copy == copy && current_link == seen ->
            current_copy = taken;
            current_link = link
          :: else -> holder[taken] = 0; taken = 2
          fi
        }
      :: else
      fi
    fi
  od
}

#ifdef NOTHING_LEFT
#define MAY_BE_READ false
#else
#define MAY_BE_READ (COVERS(hold, left) && consumed < left)
#endif

// SlotWriter::claim of a copy with one slot; `sent` is the ticket that of_copy found there, or that
// was given since, and `left` the update that it found there, ticket or not.
inline claim() {
  room = false;
#ifdef QUEUE
  (sent == 0 || consumed >= sent);
  room = true
#else
  if
  :: (sent == 0 || consumed >= sent) && !MAY_BE_READ -> room = true
  :: sent != 0 && consumed < sent ->
    if
    :: (COVERS(hold, sent) && consumed < sent) || MAY_BE_READ
    :: else ->
      ticket[taken] = 0;
      if
      :: COVERS(hold, sent) && consumed < sent -> ticket[taken] = sent
      :: else -> room = true
      fi
    fi
  :: else
  fi
#endif
}

// What the sender says over a new connection: all that it does not know to be consumed, in order.
inline serve() {
  d_step { sent = ticket[taken]; left = head[taken] }
  d_step { i = consumed; seen = 0 }
  do
  :: i == K -> break
  :: else ->
    i++;
    if
    :: i <= clock[taken]  // it is there
    :: i > clock[taken] && sent == i -> clock[taken] = i  // begun by one who died
    :: else ->
      claim();
      if
      :: room ->
        head[taken] = i;
        tail[taken] = i;
        ticket[taken] = i;
        d_step { sent = i; left = 0 }
      :: else  // LATEST: passed over
      fi;
      clock[taken] = i
    fi
  od
}

proctype Proxy(byte place) {
  byte link, copy, seen, i, sent, left, wanted;
  byte taken = 2;
  bool room;
  {
    link = (place == 0 -> 2 : 1);
    do
    :: link > LINKS -> break
    :: else ->
      wanted = link;
      take();
      if
      :: taken != 2 ->
        serve();
        holder[taken] = 0;
        taken = 2
      :: else
      fi;
      ended_links++;
      link = link + 2
    od
  } unless { !live[place] }
}

proctype Reader() {
  byte mine, next, reached, before, found;
  bool over;
  do
  :: over -> break
  :: else ->
    over = (ended_links == LINKS || !live[0] || !live[1]) && (ended_links == LINKS || timeout);
    next = current_copy;  // SlotReader::follow
    if
    :: next == mine
    :: else ->
#ifdef MOVE_AT_ONCE
      mine = next
#else
      reached = clock[mine];
      if
      :: clock[next] >= reached -> mine = next
      :: else
      fi
#endif
    fi;
#ifndef QUEUE
    hold = (consumed + 1) * 2 + 1;
#endif
    reached = clock[mine];
    assert(reached >= before);
    before = reached;
    found = ticket[mine];
    if
    :: found > consumed ->
#ifdef QUEUE
      assert(found == folded + 1);
#endif
      assert(found > folded);
      assert(head[mine] == found);
      assert(tail[mine] == found);
      folded = found;
      consumed = found
    :: else
#ifdef QUEUE
      -> assert(reached <= consumed)  // S6: nothing is missing
#endif
    fi;
    hold = 0;
    found = 0
  od
#ifdef QUEUE
  ;
  assert(ended_links < LINKS || folded == K)
#endif
}

init {
  atomic { run Proxy(0); run Proxy(1); run Reader() }
  if
  :: live[1] = false
  :: skip
  fi
}

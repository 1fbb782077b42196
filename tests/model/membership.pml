// How ranks agree on the next epoch (src/dstorm/membership/membership.cpp), for SPIN: one epoch of
// N ranks. A rank looks at another's record at any time or never, so what it knows may be as old as
// can be; ranks die at any step; whom a proposer leaves out is free, as whoever it accuses is.
//
// Checked: M1. What a mutant, named by a macro, does without must be missed. tests/model/run.py
// runs all.
#ifndef N
#define N 3
#endif
#define ALL ((1 << N) - 1)  // a set of ranks is a mask
#ifndef PROPOSALS
#define PROPOSALS 2  // of all ranks together
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#define HAS(set, r) (((set) >> (r)) & 1)
#define SIZE(set) (HAS(set, 0) + HAS(set, 1) + HAS(set, 2) + HAS(set, 3))

// The records. A ballot is round * N + rank; 0: none.
typedef Record {
  byte ended, promised, accepted, accepted_members, proposed, proposed_members
};
Record own[N];
byte next_view[N];  // of the epoch to come; 0: not in it yet

// What each rank knows of the others' records: the row is who looks.
typedef Seen {
  byte ended[N], promised[N], accepted[N], accepted_members[N]
};
Seen seen[N];

byte round[N];  // the highest seen
bool preparing[N], proposing[N];
bool live[N] = true;
byte proposals, deaths;

inline vote(i, ballot, members) {
  if
  :: ballot >= N &&
#ifndef NO_PROMISE
     ballot >= own[i].promised &&
#endif
     (ballot > own[i].promised || (members != 0 && ballot > own[i].accepted)) ->
    own[i].promised = (ballot > own[i].promised -> ballot : own[i].promised);
    if
    :: members != 0 -> own[i].accepted = ballot; own[i].accepted_members = members
    :: else
    fi
  :: else
  fi
}

#define PROMISED(i, j) (seen[i].promised[j] == own[i].proposed)
#define ACCEPTED(i, j) (seen[i].accepted[j] == own[i].proposed)
#define AGREES(i, j) ((preparing[i] && PROMISED(i, j)) || (proposing[i] && ACCEPTED(i, j)))

// seen[i] has i's own record too.
inline look_at_own(i) {
  seen[i].ended[i] = own[i].ended;
  seen[i].promised[i] = own[i].promised;
  seen[i].accepted[i] = own[i].accepted;
  seen[i].accepted_members[i] = own[i].accepted_members
}

#ifdef NO_TIE_RULE
#define IS_LARGE(set) (2 * SIZE(set) >= N)
#else
#define IS_LARGE(set) (2 * SIZE(set) > N || (2 * SIZE(set) == N && HAS(set, 0)))
#endif

inline count(i) {
  look_at_own(i);
  agreed = 0;
  certain = own[i].ended;  // as all of them know
  for (j : 0 .. N - 1) {
    if
    :: AGREES(i, j) -> agreed = agreed | (1 << j); certain = certain & seen[i].ended[j]
    :: else
    fi
  }
  j = 0;
  is_quorum = HAS(agreed, i) && (IS_LARGE(agreed) || (agreed | certain) == ALL)
}

inline adopt(i, members) {
  next_view[i] = members;
  for (j : 0 .. N - 1) {
    assert(!live[j] || next_view[j] == 0 || next_view[j] == members)  // M1
  }
  j = 0
}

inline go_on(i) {
  if
  :: preparing[i] ->
    count(i);
    if
    :: is_quorum ->
      // Bound to what a quorum may have accepted already; else free.
      best = own[i].accepted;
      own[i].proposed_members = own[i].accepted_members;
#ifndef FREE_CHOICE
      for (j : 0 .. N - 1) {
        if
        :: AGREES(i, j) && seen[i].accepted[j] > best ->
          best = seen[i].accepted[j];
          own[i].proposed_members = seen[i].accepted_members[j]
        :: else
        fi
      }
      j = 0;
#else
      best = 0;
#endif
      if
      :: best == 0 ->
        own[i].proposed_members = ALL & ~own[i].ended;
        if
        :: own[i].proposed_members = own[i].proposed_members & ~(1 << ((i + 1) % N))
        :: skip
        fi
      :: else
      fi;
      best = 0;
      preparing[i] = false;
      proposing[i] = true;
      vote(i, own[i].proposed, own[i].proposed_members)
    :: else
    fi
  :: else
  fi;
  if
  :: proposing[i] ->
    count(i);
    if
    :: is_quorum -> adopt(i, own[i].proposed_members)
    :: else
    fi
  :: else
  fi;
  agreed = 0; certain = 0; is_quorum = false
}

inline observe(i, r) {
  if
  :: next_view[r] != 0 -> adopt(i, next_view[r])
  :: else ->
    seen[i].ended[r] = own[r].ended;
    seen[i].promised[r] = own[r].promised;
    seen[i].accepted[r] = own[r].accepted;
    seen[i].accepted_members[r] = own[r].accepted_members;
    round[i] = (round[i] > own[r].promised / N -> round[i] : own[r].promised / N);
    round[i] = (round[i] > own[r].proposed / N -> round[i] : own[r].proposed / N);
    vote(i, own[r].proposed, own[r].proposed_members);
    go_on(i)
  fi
}

inline propose(i) {
  proposals++;
  round[i]++;
  preparing[i] = true;
  proposing[i] = false;
  own[i].proposed = round[i] * N + i;
  own[i].proposed_members = 0;
  vote(i, own[i].proposed, 0);
  go_on(i)
}

// Its last words have been heard, or not: another member may have said that it has ended.
inline bury(i, r) {
  if
  :: observe(i, r)
  :: skip
  fi;
  if
  :: next_view[i] == 0 -> own[i].ended = own[i].ended | (1 << r); go_on(i)
  :: else
  fi
}

#ifdef UNPROVED_IS_ENDED  // a silent rank, or one whose connection is refused on the way
#define HAS_DIED(r) true
#else
#define HAS_DIED(r) !live[r]
#endif
#define IS_IN(i) (live[i] && next_view[i] == 0)
#define LOOK(i, r)                                                             \
  ::atomic { IS_IN(i) && r != i && !HAS(own[i].ended, r) -> observe(i, r) }    \
  ::atomic { IS_IN(i) && r != i && !HAS(own[i].ended, r) && HAS_DIED(r) -> bury(i, r) }

proctype Rank(byte i) {
  byte j, agreed, certain, best;
  bool is_quorum;
end:
  do
  LOOK(i, 0)
  LOOK(i, 1)
#if N > 2
  LOOK(i, 2)
#endif
#if N > 3
  LOOK(i, 3)
#endif
  :: atomic { IS_IN(i) && proposals < PROPOSALS -> propose(i) }
  :: atomic { live[i] && deaths < DEATHS -> live[i] = false; deaths++ }
  od
}

init {
  byte r;
  atomic {
    for (r : 0 .. N - 1) { run Rank(r) }
  }
}

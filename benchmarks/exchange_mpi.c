/* The C twin of the MPI side of exchange.py: averages a float32 vector in place, all-reduce and a
   division; compiled with the mpicc of the MPI that is measured.

     mpirun -n RANKS exchange_mpi BYTES [BLOCKS]

   Prints the median over blocks of the mean microseconds an exchange, as rank 0 sees it; every rank
   checks the average. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static const double block_seconds = 0.02;

static void average(float *values, int count, int ranks) {
  MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  const float divisor = (float)ranks;
  for (int i = 0; i < count; ++i) values[i] /= divisor;
}

static double seconds_each(int repeats, float *values, int count, int ranks) {
  const double start = MPI_Wtime();
  for (int i = 0; i < repeats; ++i) average(values, count, ranks);
  return (MPI_Wtime() - start) / repeats;
}

static void check(const float *values, int count, int ranks) {
  for (int i = 0; i < count; ++i) {
    if (values[i] == (float)(i % 97) + (float)(ranks - 1)) continue;
    fprintf(stderr, "element %d of the average is wrong\n", i);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

int main(int argc, char **argv) {
  int rank, ranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const int count = argc > 1 ? (int)(strtoull(argv[1], NULL, 10) / sizeof(float)) : 0;
  const int blocks = argc > 2 ? atoi(argv[2]) : 9;
  float *values = aligned_alloc(64, ((size_t)count * sizeof(float) + 63) / 64 * 64);
  double *seconds = malloc(sizeof(double) * (size_t)(blocks > 0 ? blocks : 1));
  if (count < 1 || blocks < 1 || values == NULL || seconds == NULL) {
    fprintf(stderr, "usage: mpirun -n RANKS %s BYTES [BLOCKS]\n", argv[0]);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }

  for (int i = 0; i < count; ++i) values[i] = (float)(i % 97) + 2.0F * (float)rank;
  average(values, count, ranks);
  check(values, count, ranks);
  const double once = seconds_each(4, values, count, ranks);
  int repeats = (int)(block_seconds / once);
  repeats = repeats < 1 ? 1 : repeats > 20000 ? 20000 : repeats;
  MPI_Bcast(&repeats, 1, MPI_INT, 0, MPI_COMM_WORLD);
  for (int block = 0; block < blocks; ++block) {
    MPI_Barrier(MPI_COMM_WORLD);
    seconds[block] = seconds_each(repeats, values, count, ranks);
  }
  check(values, count, ranks);
  qsort(seconds, (size_t)blocks, sizeof(double), by_value);
  if (rank == 0) printf("%.4f\n", 1e6 * seconds[blocks / 2]);
  free(seconds);
  free(values);
  MPI_Finalize();
  return 0;
}

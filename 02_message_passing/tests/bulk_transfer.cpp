// For two_nodes_test.sh: every rank's host name, then what a bulk transfer from the first to the last rank achieves.
#include <mpi.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const size_t bytes = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 0;
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  char host[64] = "";
  gethostname(host, sizeof host - 1);
  std::vector<char> hosts(size * sizeof host);
  MPI_Gather(host, sizeof host, MPI_CHAR, hosts.data(), sizeof host, MPI_CHAR, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    std::printf("hosts");
    for (int r = 0; r < size; ++r) std::printf(" %s", &hosts[r * sizeof host]);
    std::printf("\n");
  }
  std::vector<char> message(bytes);
  char answer = 0;
  MPI_Barrier(MPI_COMM_WORLD);
  const double start = MPI_Wtime();
  if (rank == 0 && size > 1) {
    MPI_Send(message.data(), static_cast<int>(bytes), MPI_CHAR, size - 1, 0, MPI_COMM_WORLD);
    MPI_Recv(&answer, 1, MPI_CHAR, size - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    std::printf("mbits %.0f\n", 8e-6 * static_cast<double>(bytes) / (MPI_Wtime() - start));
  } else if (rank == size - 1 && size > 1) {
    MPI_Recv(message.data(), static_cast<int>(bytes), MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Send(&answer, 1, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
  }
  MPI_Finalize();
}

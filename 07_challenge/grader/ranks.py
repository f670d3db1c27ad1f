"""How a program is started on ranks for grading: by the launcher that the build was made with, also with more ranks than cores."""
import os
import re

from processes import launcher

# Open MPI 4 and 5 read these, others do not mind them: no guess which mpiexec it is, or what it takes for a core. Root is a container's usual user.
ENVIRONMENT = {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
               "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class Starter:
    def __init__(self, mpiexec="mpirun"):
        self.machine = launcher.Machine()
        self.mpiexec = mpiexec or "mpirun"

    def command(self, count, program):
        if self.machine.slurm_tasks:  # on one node of the job, which may have fewer cores than ranks
            return ["srun", "-N1", "-n", str(count), "--overcommit", "--mpi=pmix", *program]
        return [self.mpiexec, "-n", str(count), *program]

    def environment(self, **more):
        """Ours, without what says that we are a rank ourselves."""
        ours = {name: value for name, value in os.environ.items() if not re.match(r"(OMPI_COMM|PMIX?)_", name)}
        return {**ours, **ENVIRONMENT, **more}

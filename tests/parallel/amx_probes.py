"""Probe programs that crash as torch does on a CPU that reports AMX but cannot use it."""

DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
DIES_WITH_AMX = f"import os\nif os.environ.get('ONEDNN_MAX_CPU_ISA') != 'AVX512_CORE_BF16': {DIES}"
LIMITED = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}

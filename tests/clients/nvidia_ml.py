# NVIDIA's own nvidia-ml-py: what NVML says of every card.
import pynvml

pynvml.nvmlInit()
print("driver", pynvml.nvmlSystemGetDriverVersion())
for index in range(pynvml.nvmlDeviceGetCount()):
    card = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(card)
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(card)
    print(pynvml.nvmlDeviceGetName(card), pynvml.nvmlDeviceGetUUID(card), memory.total)
    print(memory.used, "used by", len(processes), "processes")
pynvml.nvmlShutdown()

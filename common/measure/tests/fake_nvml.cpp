// A stand-in for libnvidia-ml.so.1 with one device, index 0 or 0000:0A:00.0, whose load rises by 10 with every question.
#include <cstring>

namespace {
int device = 0, sessions = 0;
unsigned load = 0;
}  // namespace

extern "C" {
int nvmlInit_v2() { return ++sessions, 0; }
int nvmlShutdown() { return --sessions, 0; }
int fake_nvml_sessions() { return sessions; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) { return index == 0 ? (*handle = &device, 0) : 2; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** handle) { return std::strcmp(id, "0000:0A:00.0") == 0 ? (*handle = &device, 0) : 6; }
int nvmlDeviceGetName(void*, char* name, unsigned length) { return std::strncpy(name, "Pretend 100", length), 0; }
int nvmlDeviceGetUtilizationRates(void*, unsigned* rates) { return rates[0] = load += 10, rates[1] = 1, 0; }
int nvmlDeviceGetMemoryInfo(void*, unsigned long long* sizes) { return sizes[0] = 100, sizes[1] = 60, sizes[2] = 40, 0; }
int nvmlDeviceGetPowerUsage(void*, unsigned*) { return 3; }  // not supported by this device
}

// Runs an exported policy with ONNX Runtime from C++; it needs its headers and library and nothing else.
//
//   g++ -std=c++17 -O2 -I ORT/include policy.cpp -L ORT/lib -lonnxruntime -o policy
//   ./policy DIRECTORY/policy.onnx < observations.txt
//
// Each line of the input is one observation, all numbers of it (of several, one after another); `reset` begins an
// episode. Each line of the output is one action. The recurrent state goes from each call to the next in here.
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <iterator>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

struct Port {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> numbers;  // of an input
};

bool starts_with(const std::string& text, const std::string& start) { return text.rfind(start, 0) == 0; }

class Policy {
 public:
  explicit Policy(const char* path) : session_(env_, path, options()) {
    Ort::AllocatorWithDefaultOptions allocator;
    for (size_t i = 0; i < session_.GetInputCount(); ++i) {
      auto shape = session_.GetInputTypeInfo(i).GetTensorTypeAndShapeInfo().GetShape();
      auto count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<int64_t>());
      inputs_.push_back({session_.GetInputNameAllocated(i, allocator).get(), shape, std::vector<float>(count)});
      if (starts_with(inputs_.back().name, "noise"))
        throw std::runtime_error("this policy draws: export it with --noise neutral");
    }
    for (size_t i = 0; i < session_.GetOutputCount(); ++i)
      outputs_.push_back(session_.GetOutputNameAllocated(i, allocator).get());
    std::cerr << "environment: " << metadata("environment") << "\n";
  }

  // What the lab knows of the policy: a field of policy.json, as JSON.
  std::string metadata(const char* key) {
    Ort::AllocatorWithDefaultOptions allocator;
    auto value = session_.GetModelMetadata().LookupCustomMetadataMapAllocated(key, allocator);
    return value ? value.get() : "null";
  }

  void reset() { is_first_ = true; }

  std::vector<float> act(const std::vector<float>& observation) {
    size_t read = 0;
    for (auto& port : inputs_) {
      if (port.name == "is_first") port.numbers[0] = is_first_ ? 1.0f : 0.0f;
      if (!starts_with(port.name, "observation")) continue;
      if (read + port.numbers.size() > observation.size()) throw std::runtime_error("too few numbers for " + port.name);
      std::copy_n(observation.begin() + read, port.numbers.size(), port.numbers.begin());
      read += port.numbers.size();
    }
    if (read != observation.size()) throw std::runtime_error("too many numbers in an observation");
    auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    std::vector<Ort::Value> given;
    std::vector<const char*> names, asked;
    for (auto& port : inputs_) {
      names.push_back(port.name.c_str());
      given.push_back(Ort::Value::CreateTensor<float>(memory, port.numbers.data(), port.numbers.size(),
                                                      port.shape.data(), port.shape.size()));
    }
    for (auto& name : outputs_) asked.push_back(name.c_str());
    auto found = session_.Run(Ort::RunOptions{nullptr}, names.data(), given.data(), given.size(), asked.data(),
                              asked.size());
    is_first_ = false;
    std::vector<float> action;
    for (size_t i = 0; i < found.size(); ++i) {
      auto info = found[i].GetTensorTypeAndShapeInfo();
      bool is_choice = info.GetElementType() == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
      for (size_t k = 0; starts_with(outputs_[i], "action") && k < info.GetElementCount(); ++k)
        action.push_back(is_choice ? float(found[i].GetTensorData<int32_t>()[k]) : found[i].GetTensorData<float>()[k]);
      for (auto& port : inputs_)
        if (outputs_[i] == "next_" + port.name)
          std::copy_n(found[i].GetTensorData<float>(), port.numbers.size(), port.numbers.begin());
    }
    return action;
  }

 private:
  static Ort::SessionOptions options() {
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(1);
    return options;
  }

  Ort::Env env_{ORT_LOGGING_LEVEL_ERROR, "policy"};
  Ort::Session session_;
  std::vector<Port> inputs_;
  std::vector<std::string> outputs_;
  bool is_first_ = true;
};

int main(int count, char** words) try {
  if (count != 2) throw std::runtime_error("usage: policy POLICY.onnx < observations");
  Policy policy(words[1]);
  std::cout.precision(9);
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "reset") {
      policy.reset();
      continue;
    }
    std::istringstream text(line);
    std::vector<float> observation{std::istream_iterator<float>(text), std::istream_iterator<float>()};
    for (float number : policy.act(observation)) std::cout << number << " ";
    std::cout << "\n";
  }
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << "\n";
  return 1;
}

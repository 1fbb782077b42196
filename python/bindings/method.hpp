// Methods bound directly to CPython's fast call. pybind11 needs most of a microsecond to sort out
// keywords, defaults and overloads, which is longer than the scatter of a small vector. So the
// methods of a training loop are bound without it.
#pragma once

#include <array>
#include <string>

#include "bindings.hpp"

namespace malt_bindings {

// The names of a method's parameters, all with defaults; the first `positional` of them can be
// given without their names.
template <std::size_t N>
class Parameters {
 public:
  Parameters(const char* method, std::size_t positional, const std::array<const char*, N>& names)
      : method_(method), positional_(positional) {
    // Interned, and never freed: the names in the caller's code are then the same objects.
    for (std::size_t i = 0; i < N; ++i) names_[i] = PyUnicode_InternFromString(names[i]);
  }

  // The arguments of a call in the order of the parameters; null for those that were not given.
  // Throws TypeError.
  std::array<PyObject*, N> match(PyObject* const* arguments, std::size_t count,
                                 PyObject* keywords) const {
    if (count > positional_) {
      throw py::type_error(std::string(method_) + "() takes at most " +
                           std::to_string(positional_) + " positional arguments, not " +
                           std::to_string(count));
    }
    std::array<PyObject*, N> matched{};
    for (std::size_t i = 0; i < count; ++i) matched[i] = arguments[i];
    const auto named =
        keywords == nullptr ? 0 : static_cast<std::size_t>(PyTuple_GET_SIZE(keywords));
    for (std::size_t i = 0; i < named; ++i) {
      PyObject* name = PyTuple_GET_ITEM(keywords, static_cast<Py_ssize_t>(i));
      PyObject*& place = matched[find(name)];
      if (place != nullptr) refuse("got two values for", name);
      place = arguments[count + i];
    }
    return matched;
  }

  // An argument as a T; `absent` if it was not given.
  template <class T>
  T get(const std::array<PyObject*, N>& matched, std::size_t parameter, T absent) const {
    PyObject* given = matched[parameter];
    if (given == nullptr) return absent;
    py::detail::make_caster<T> caster;
    if (!caster.load(given, true)) {
      refuse((py::repr(given).cast<std::string>() + " is no value for").c_str(), names_[parameter]);
    }
    return py::detail::cast_op<T>(std::move(caster));
  }

 private:
  std::size_t find(PyObject* name) const {
    for (std::size_t i = 0; i < N; ++i) {
      if (names_[i] == name) return i;
    }
    for (std::size_t i = 0; i < N; ++i) {
      if (PyUnicode_Compare(names_[i], name) == 0) return i;
    }
    refuse("has no parameter", name);
  }
  [[noreturn]] void refuse(const char* what, PyObject* name) const {
    throw py::type_error(std::string(method_) + "() " + what + " '" +
                         py::handle(name).cast<std::string>() + "'");
  }

  const char* method_;
  std::size_t positional_;
  std::array<PyObject*, N> names_;
};

// Adds the method `name` to the class of T: T::method(arguments, count, keywords) -> py::object.
// `doc` starts with the signature.
template <class T, auto method, class... Options>
void add_method(py::class_<T, Options...>& to, const char* name, const char* doc) {
  using Call = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*) noexcept;
  constexpr Call kCall = [](PyObject* self, PyObject* const* arguments, Py_ssize_t count,
                            PyObject* keywords) noexcept -> PyObject* {
    try {
      // The descriptor has checked that self is of T's class.
      auto held = reinterpret_cast<py::detail::instance*>(self)->get_value_and_holder();
      if (!held.holder_constructed()) throw py::type_error("__init__() was not called");
      auto* object = held.template value_ptr<T>();
      return (object->*method)(arguments, static_cast<std::size_t>(count), keywords)
          .release()
          .ptr();
    } catch (py::error_already_set& error) {
      error.restore();
    } catch (...) {
      py::detail::try_translate_exceptions();
    }
    return nullptr;
  };
  static PyMethodDef definition{};
  definition.ml_name = name;
  definition.ml_meth = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(kCall));
  definition.ml_flags = METH_FASTCALL | METH_KEYWORDS;
  definition.ml_doc = doc;
  to.attr(name) = py::reinterpret_steal<py::object>(
      PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(to.ptr()), &definition));
}

}  // namespace malt_bindings

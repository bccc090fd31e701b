#include "tests/support/test_certificates.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <atomic>
#include <cstdio>

#include "kernels/core/check.h"

namespace brigade::tests {
namespace {

constexpr int kX509Version3 = 2;
constexpr long kDaySeconds = 24L * 3600;

void add_extension(X509* certificate, X509* issuer, int id, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, id, value);
  CHECK(extension != nullptr);
  CHECK(X509_add_ext(certificate, extension, -1) == 1);
  X509_EXTENSION_free(extension);
}

void set_common_name(X509* certificate, const std::string& name) {
  X509_NAME* subject = X509_get_subject_name(certificate);
  CHECK(X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                                   reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1,
                                   0) == 1);
}

// Signed by `issuer_key`; a null issuer means by itself.
X509* make_certificate(const std::string& name, EVP_PKEY* key, X509* issuer, EVP_PKEY* issuer_key,
                       absl::Duration life) {
  static std::atomic<long> serial{1};
  X509* certificate = X509_new();
  CHECK(certificate != nullptr);
  X509_set_version(certificate, kX509Version3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), ++serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -kDaySeconds);
  X509_gmtime_adj(X509_getm_notAfter(certificate), static_cast<long>(absl::ToInt64Seconds(life)));
  X509_set_pubkey(certificate, key);
  set_common_name(certificate, name);
  X509* signer = issuer == nullptr ? certificate : issuer;
  X509_set_issuer_name(certificate, X509_get_subject_name(signer));
  if (issuer == nullptr) {
    add_extension(certificate, signer, NID_basic_constraints, "critical,CA:TRUE");
  } else {
    add_extension(certificate, signer, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
  }
  CHECK(X509_sign(certificate, issuer_key, EVP_sha256()) > 0);
  return certificate;
}

template <typename Write>
void replace_file(const std::string& path, Write write) {
  const std::string temporary = path + ".new";
  std::FILE* file = std::fopen(temporary.c_str(), "w");
  CHECK(file != nullptr);
  CHECK(write(file) == 1);
  CHECK(std::fclose(file) == 0);
  CHECK(std::rename(temporary.c_str(), path.c_str()) == 0);
}

}  // namespace

struct TestAuthority::Parts {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = nullptr;
};

TestAuthority::TestAuthority(const std::string& folder, const std::string& name)
    : folder_(folder), name_(name), parts_(std::make_unique<Parts>()) {
  CHECK(parts_->key != nullptr);
  parts_->certificate = make_certificate(name, parts_->key, nullptr, parts_->key, absl::Hours(24));
  replace_file(path(), [&](std::FILE* file) { return PEM_write_X509(file, parts_->certificate); });
}

TestAuthority::~TestAuthority() {
  X509_free(parts_->certificate);
  EVP_PKEY_free(parts_->key);
}

std::string TestAuthority::path() const { return folder_ + name_ + ".pem"; }

void TestAuthority::issue(const std::string& name, absl::Duration life) const {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  CHECK(key != nullptr);
  X509* certificate = make_certificate(name, key, parts_->certificate, parts_->key, life);
  replace_file(folder_ + name + ".key", [&](std::FILE* file) {
    return PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
  });
  replace_file(folder_ + name + ".pem",
               [&](std::FILE* file) { return PEM_write_X509(file, certificate); });
  X509_free(certificate);
  EVP_PKEY_free(key);
}

}  // namespace brigade::tests

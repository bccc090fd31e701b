#include "runtime/api/certificate_check.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"
#include "runtime/api/secret_file.h"

namespace brigade::runtime {
namespace {

template <typename T, void (*kFree)(T*)>
struct Freed {
  void operator()(T* object) const { kFree(object); }
};
using Certificate = std::unique_ptr<X509, Freed<X509, X509_free>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY, EVP_PKEY_free>>;
using Source = std::unique_ptr<BIO, Freed<BIO, BIO_free_all>>;

Source source_of(const std::string& text) {
  return Source(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

absl::Status fault(const std::string& flag, const std::string& path, const std::string& sentence) {
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", path, " ", sentence));
}

std::string date_text(const ASN1_TIME* time) {
  const Source out(BIO_new(BIO_s_mem()));
  ASN1_TIME_print(out.get(), time);
  char* data = nullptr;
  const long size = BIO_get_mem_data(out.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

// The first certificate of the file, valid now.
absl::StatusOr<Certificate> read_certificate(const std::string& path, const std::string& flag) {
  ASSIGN_OR_RETURN(const std::string text, read_secret_file(path, flag));
  Certificate certificate(PEM_read_bio_X509(source_of(text).get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr) return fault(flag, path, "holds no certificate in PEM");
  if (const ASN1_TIME* end = X509_get0_notAfter(certificate.get());
      X509_cmp_current_time(end) < 0) {
    return fault(flag, path, absl::StrCat("has expired on ", date_text(end)));
  }
  if (const ASN1_TIME* begin = X509_get0_notBefore(certificate.get());
      X509_cmp_current_time(begin) > 0) {
    return fault(flag, path, absl::StrCat("is not valid before ", date_text(begin)));
  }
  return certificate;
}

int no_passphrase(char*, int, int, void*) { return 0; }

}  // namespace

absl::Status check_key_and_certificate(const std::string& key_path, const std::string& cert_path) {
  ASSIGN_OR_RETURN(const Certificate certificate, read_certificate(cert_path, "--tls-cert"));
  ASSIGN_OR_RETURN(const std::string text, read_secret_file(key_path, "--tls-key"));
  const PrivateKey key(
      PEM_read_bio_PrivateKey(source_of(text).get(), nullptr, no_passphrase, nullptr));
  if (key == nullptr) {
    return fault("--tls-key", key_path, "holds no private key in PEM without a passphrase");
  }
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    return fault("--tls-key", key_path, absl::StrCat("is not the key of ", cert_path));
  }
  return absl::OkStatus();
}

absl::Status check_authorities(const std::string& path, const std::string& flag) {
  return read_certificate(path, flag).status();
}

}  // namespace brigade::runtime

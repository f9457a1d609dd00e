package acceptance;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Base64;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** TLS as the environment says: the authority that is trusted, and the certificate that is shown, in PEM. */
final class LoginTls {
    private static final char[] NO_PASSWORD = new char[0];

    private LoginTls() {}

    static SSLContext context() {
        try {
            TrustManagerFactory trusted = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            KeyStore authorities = empty();
            authorities.setCertificateEntry("ca", certificate("LOGIN_CA"));
            trusted.init(authorities);
            KeyManagerFactory shown = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
            KeyStore keys = empty();
            if (System.getenv("LOGIN_CERTIFICATE") != null) {
                Certificate[] chain = {certificate("LOGIN_CERTIFICATE")};
                String key = Files.readString(Path.of(System.getenv("LOGIN_KEY"))).replaceAll("-----[A-Z ]+-----", "");
                PKCS8EncodedKeySpec octets = new PKCS8EncodedKeySpec(Base64.getMimeDecoder().decode(key));
                keys.setKeyEntry("own", KeyFactory.getInstance("EC").generatePrivate(octets), NO_PASSWORD, chain);
            }
            shown.init(keys, NO_PASSWORD);
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(shown.getKeyManagers(), trusted.getTrustManagers(), null);
            return context;
        } catch (GeneralSecurityException | IOException error) {
            throw new IllegalStateException(error);
        }
    }

    private static KeyStore empty() throws GeneralSecurityException, IOException {
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, NO_PASSWORD);
        return store;
    }

    private static Certificate certificate(String variable) throws GeneralSecurityException, IOException {
        try (InputStream file = Files.newInputStream(Path.of(System.getenv(variable)))) {
            return CertificateFactory.getInstance("X.509").generateCertificate(file);
        }
    }
}

//! No spec, of an HPA or of an Autoscaler, makes the decoder panic.
#![no_main]

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscalerSpec;
use plimsoll::crd::AutoscalerSpec;
use plimsoll::hpa::Spec;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(json) = serde_json::from_slice::<serde_json::Value>(bytes) else { return };
    if let Ok(spec) = serde_json::from_value::<HorizontalPodAutoscalerSpec>(json.clone()) {
        Spec::from_api(&spec);
    }
    if let Ok(spec) = AutoscalerSpec::read(json) {
        Spec::from_api(&spec.as_hpa("shop", "web"));
    }
});

//! Enums whose variants are names of the API.

/// Defines such an enum, with `ALL`, its variants in their order, and `as_str`, the name of one.
macro_rules! api_names {
    (
        $(#[$of_enum:meta])*
        $visibility:vis enum $name:ident { $($(#[$of_variant:meta])* $variant:ident,)+ }
    ) => {
        $(#[$of_enum])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visibility enum $name { $($(#[$of_variant])* $variant,)+ }

        impl $name {
            /// All, in their order.
            // Some are read by tests only.
            #[allow(dead_code)]
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Its name in the API.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant),)+ }
            }
        }
    };
}
pub(crate) use api_names;
